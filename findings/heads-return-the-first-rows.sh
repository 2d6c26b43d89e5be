#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), models of the architectures eagle3 and dflash, beside one of llama.
# Expected: after a decode of six tokens, some of which are asked for (batch.logits), llama_get_logits_ith(i) is the row
# of token i, as llama.h says and as for any other model.
# Instead: of n tokens that are asked for, the rows are those of the first n of the batch: the last token gets the row
# of the first, tokens 2 and 4 those of 0 and 1. Nothing is logged, and if all are asked for, each has its own.
# Why: these two graphs compute all rows and do not pick those that are asked for; the first ones are copied.
# Why it matters: a head that has read a text, and is asked for its last token as any model is, predicts what follows
# the first one. No error shows it: its candidates are refused. duo asks a head for all rows of a batch, or none.
# pip compiles llama-cpp-python for some minutes if it has not kept a wheel of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install llama-cpp-python==0.3.36 gguf==0.19.0
"$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import ctypes
import sys

import gguf
import llama_cpp as L
import numpy as np

N, N_VOCAB, ALL = 64, 32, range(6)
KEYS = {"context_length": 64, "embedding_length": N, "block_count": 1, "feed_forward_length": N, "head_count": 1}
KEYS |= {"vocab_size": N_VOCAB, "layer_norm_rms_eps": 1e-5, "tokenizer_model": "no_vocab"}
SQUARES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TENSORS = {f"blk.0.{name}": (N, N) for name in SQUARES} | {"blk.0.attn_norm": (N,), "blk.0.ffn_norm": (N,)}
TENSORS |= {"token_embd": (N_VOCAB, N), "output": (N_VOCAB, N), "output_norm": (N,)}
EAGLE3 = {f"blk.0.attn_{part}": (N, 2 * N) for part in "qkv"} | {"fc": (N, 3 * N), "blk.0.attn_norm_2": (N,)}
DFLASH = {"fc": (N, 3 * N), "enc.output_norm": (N,), "blk.0.attn_q_norm": (N,), "blk.0.attn_k_norm": (N,)}
random = np.random.default_rng(0)
hidden = random.standard_normal((len(ALL), N), np.float32)
quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)


def context(kind: str, more: dict[str, tuple[int, ...]]) -> L.llama_context_p:
    """Of a model with one layer of random numbers."""
    file = gguf.GGUFWriter(f"{sys.argv[1]}/{kind}.gguf", kind)
    for key, value in KEYS.items():
        getattr(file, f"add_{key}")(value)
    file.add_array(f"{kind}.target_layers", [0, 1, 1])
    file.add_uint32(f"{kind}.target_hidden_size", N)
    for name, shape in (TENSORS | more).items():
        file.add_tensor(f"{name}.weight", random.standard_normal(shape, np.float32) / 8)
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    model = L.llama_model_load_from_file(f"{sys.argv[1]}/{kind}.gguf".encode(), L.llama_model_default_params())
    return L.llama_init_from_model(model, L.llama_context_default_params())


def logits(context: L.llama_context_p, kind: str, asked: list[int]) -> list[np.ndarray]:
    batch = L.llama_batch_init(len(ALL), 0, 1)
    batch.n_tokens = len(ALL)
    for i in ALL:
        batch.token[i], batch.pos[i], batch.logits[i] = 3 + i, i, i in asked
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if kind == "eagle3":  # each token with a hidden row
        batch.embd = hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    L.llama_memory_clear(L.llama_get_memory(context), True)
    assert L.llama_decode(context, batch) == 0
    return [np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), (N_VOCAB,)).copy() for i in asked]


same = True
for kind, more in (("llama", {}), ("eagle3", EAGLE3), ("dflash", DFLASH)):
    there = context(kind, more)
    every = logits(there, kind, [*ALL])
    for asked in ([5], [2, 4]):
        got = [int(np.argmin([np.abs(row - other).max() for other in every])) for row in logits(there, kind, asked)]
        print(f"{kind:6} logits of tokens {asked}: those of tokens {got}")
        same = same and got == (asked if kind == "llama" else [*range(len(asked))])
if not same:
    raise SystemExit("llama.cpp has changed: which rows are returned is another")
PROGRAM

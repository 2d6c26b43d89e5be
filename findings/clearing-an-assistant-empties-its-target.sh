#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), a Gemma 4 and its assistant, whose context uses the target's cache (ctx_other).
# Expected: the functions of llama_memory on the assistant's context either work on the cache that both share, or leave
# it alone and say so; llama_memory_clear and llama_memory_seq_rm of all positions do the same.
# Instead: llama_memory_seq_rm returns true and removes nothing, neither there nor in the target. llama_memory_clear,
# which returns nothing, empties the target's cache: the next token of the target is taken as the first of a new text
# (result 0, other logits). llama_memory_seq_pos_max of the assistant is the target's throughout.
# Why: a cache that shares another's cells leaves seq_rm to the other, but clear() goes to the cells, which are shared.
# Why it matters: a draft's cache is cleared as a matter of course, when it begins a text or when it is suspended. Here
# the target loses its text, and no result tells it. duo resets a head with seq_rm alone.
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

N, N_OWN, N_VOCAB, TEXT = 64, 32, 32, [3, 4, 5, 6, 7]  # the assistant is narrower than its target
KEYS = {"context_length": 512, "embedding_length_out": N, "block_count": 2, "feed_forward_length": N, "head_count": 1}
KEYS |= {"head_count_kv": 1, "vocab_size": N_VOCAB, "tokenizer_model": "no_vocab", "layer_norm_rms_eps": 1e-5}
KEYS |= {f"{part}_length{more}": N for part in ("key", "value") for more in ("", "_swa")} | {"rope_dimension_count": N}
KEYS |= {"sliding_window": 64, "sliding_window_pattern": [True, False], "embedding_length_per_layer_input": 0}
quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)


def context(kind: str, n: int, keys: dict[str, int], layer: dict[str, tuple[int, ...]], **more: object) -> object:
    """That of a model of two layers of random numbers, `n` wide; `more`: settings."""
    layer |= {"attn_q": (N, n), "attn_output": (n, N), "ffn_gate": (N, n), "ffn_up": (N, n), "ffn_down": (n, N)}
    layer |= dict.fromkeys(("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"), (n,))
    layer["attn_q_norm"] = (N,)
    tensors = {f"blk.{i}.{name}": shape for i in (0, 1) for name, shape in layer.items()} | {"rope_freqs": (N // 2,)}
    tensors |= {"token_embd": (N_VOCAB, n), "output_norm": (n,)}
    if n < N:
        tensors |= {"nextn.pre_projection": (n, 2 * N), "nextn.post_projection": (N, n)}
    file, random = gguf.GGUFWriter(f"{sys.argv[1]}/{kind}.gguf", kind), np.random.default_rng(0)
    for key, value in (KEYS | {"embedding_length": n} | keys).items():
        getattr(file, f"add_{key}")(value)
    for name, shape in tensors.items():
        file.add_tensor(f"{name}.weight", random.standard_normal(shape, np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    model = L.llama_model_load_from_file(f"{sys.argv[1]}/{kind}.gguf".encode(), L.llama_model_default_params())
    settings = L.llama_context_default_params()
    for name, value in more.items():
        setattr(settings, name, value)
    return L.llama_init_from_model(model, settings)


def target_reads(tokens: list[int]) -> np.ndarray:
    """The logits after these tokens, which come after what the cache holds."""
    array = (L.llama_token * len(tokens))(*tokens)
    assert L.llama_decode(target, L.llama_batch_get_one(array, len(tokens))) == 0
    return np.ctypeslib.as_array(L.llama_get_logits_ith(target, -1), (N_VOCAB,)).copy()


def held() -> list[int]:
    return [L.llama_memory_seq_pos_max(L.llama_get_memory(one), 0) + 1 for one in (target, assistant)]


target = context("gemma4", N, {}, {"attn_k": (N, N), "attn_v": (N, N), "attn_k_norm": (N,)})
more = {"ctx_other": target, "ctx_type": L.LLAMA_CONTEXT_TYPE_MTP}
assistant = context("gemma4-assistant", N_OWN, {"nextn_predict_layers": 2}, {"layer_output_scale": (1,)}, **more)
target_reads(TEXT)
wanted = target_reads([8])
L.llama_memory_seq_rm(L.llama_get_memory(target), 0, len(TEXT), -1)
before = held()
removed = L.llama_memory_seq_rm(L.llama_get_memory(assistant), 0, 0, -1)
without = held()
L.llama_memory_clear(L.llama_get_memory(assistant), True)
cleared, off = held(), np.abs(target_reads([8]) - wanted).max()
print(f"target and assistant hold {before}; after the assistant's seq_rm, which says {removed}: {without}")
print(f"after the assistant's clear: {cleared}, and the target's next logits are off by {off:.1f}")
if not (removed and before == without == [5, 5] and cleared == [0, 0] and off > 0.1):
    raise SystemExit("llama.cpp has changed: what an assistant's context removes is another")
PROGRAM

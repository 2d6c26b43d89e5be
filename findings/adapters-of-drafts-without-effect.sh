#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), LoRA adapters of drafts (eagle3; dflash with a Markov head), beside a llama's.
# Expected: an adapter that llama_adapter_lora_init and llama_set_adapters_lora take changes the logits, whatever tensor
# it is for, as with a llama; what has no effect is refused, or there is a word in the log.
# Instead: adapters of token_embd, and of the draft's markov_w1, are taken and change no bit of the logits; a llama's of
# token_embd does. Those of attn_q and of output change them with all three, and that of markov_w2 does, too.
# Why: an adapter has an effect where a graph asks for it, and these graphs take rows of a matrix without asking.
# Why it matters: of a draft that was tuned with its target, the part that is for tokens is lost without a word; it
# shows only in what is accepted. duo takes no adapters: a tuned model is a file of its own.
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
DFLASH |= {"markov_w1": (N_VOCAB, 8), "markov_w2": (N_VOCAB, 8)}
random = np.random.default_rng(0)
hidden = random.standard_normal((len(ALL), N), np.float32)
quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)


def load(kind: str, more: dict[str, tuple[int, ...]]) -> object:
    """A model with one layer of random numbers."""
    file = gguf.GGUFWriter(f"{sys.argv[1]}/{kind}.gguf", kind)
    for key, value in KEYS.items():
        getattr(file, f"add_{key}")(value)
    file.add_array(f"{kind}.target_layers", [0, 1, 1])
    file.add_uint32("dflash.block_size" if kind == "dflash" else f"{kind}.target_hidden_size", N)
    for name, shape in (TENSORS | more).items():
        file.add_tensor(f"{name}.weight", random.standard_normal(shape, np.float32) / 8)
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    return L.llama_model_load_from_file(f"{sys.argv[1]}/{kind}.gguf".encode(), L.llama_model_default_params())


def adapter(model: object, kind: str, name: str, shape: tuple[int, int]) -> object:
    """A LoRA of rank 4 of one tensor; those of embeddings are the other way round."""
    file = gguf.GGUFWriter(f"{sys.argv[1]}/lora.gguf", kind)
    for key, value in (("general.type", "adapter"), ("adapter.type", "lora")):
        file.add_string(key, value)
    file.add_float32("adapter.lora.alpha", 4.0)
    n_out, n_in = shape
    parts = ((n_out, 4), (n_in, 4)) if name == "token_embd" else ((4, n_in), (n_out, 4))
    for part, size in zip("ab", parts):
        file.add_tensor(f"{name}.weight.lora_{part}", random.standard_normal(size, np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    return L.llama_adapter_lora_init(model, f"{sys.argv[1]}/lora.gguf".encode())


def logits(model: object, kind: str, lora: object = None) -> np.ndarray:
    context = L.llama_init_from_model(model, L.llama_context_default_params())
    if lora:
        one, scale = (L.llama_adapter_lora_p_ctypes * 1)(lora), (ctypes.c_float * 1)(1.0)
        assert L.llama_set_adapters_lora(context, one, 1, scale) == 0
    batch = L.llama_batch_init(len(ALL), 0, 1)
    batch.n_tokens = len(ALL)
    for i in ALL:
        batch.token[i], batch.pos[i], batch.logits[i] = 3 + i, i, True
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if kind == "eagle3":  # each token with a hidden row
        batch.embd = hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert L.llama_decode(context, batch) == 0
    return np.ctypeslib.as_array(L.llama_get_logits(context), (len(ALL), N_VOCAB)).copy()


same, without = True, {"eagle3": {"token_embd"}, "dflash": {"token_embd", "markov_w1"}}
for kind, more in (("llama", {}), ("eagle3", EAGLE3), ("dflash", DFLASH)):
    model = load(kind, more)
    plain, effects = logits(model, kind), {}
    for name in ("token_embd", "blk.0.attn_q", "output", *(["markov_w1", "markov_w2"] if kind == "dflash" else [])):
        lora = adapter(model, kind, name, (TENSORS | more)[name])
        effects[name] = np.abs(logits(model, kind, lora) - plain).max()
    print(f"{kind}: logits change by", ", ".join(f"{effect:.3f} ({name})" for name, effect in effects.items()))
    same = same and {name for name, effect in effects.items() if not effect} == without.get(kind, set())
if not same:
    raise SystemExit("llama.cpp has changed: what an adapter has an effect on is another")
PROGRAM

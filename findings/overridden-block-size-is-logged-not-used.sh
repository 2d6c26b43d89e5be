#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), kv_overrides of a model, here of a block draft with a Markov head (DSpark).
# Expected: with a key overridden, a model is as if its file had that value; what "Using metadata override" is logged
# for is in effect, and what has no effect is an error, or a word in the log.
# Instead: the override of block_size is logged as used, with the same words as one that is in effect (that of the
# epsilon), but the Markov head goes by the file's value. The overrides of sample_from_anchor and of the chat template
# have no effect and no word in the log. llama_model_meta_val_str says the file's value of all four.
# Why: an override is for what asks for the key while the model is loaded; it is logged there, whatever uses the value.
# DSpark's graph and the two functions read texts that were kept from the file.
# Why it matters: an override is the way to mend a wrong key without writing gigabytes, and the log is the only sign
# that it is in effect. duo overrides no keys, and reads those of a block draft from its file, as DSpark's graph does.
# pip compiles llama-cpp-python for some minutes if it has not kept a wheel of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install llama-cpp-python==0.3.36 gguf==0.19.0
"$folder/venv/bin/python" - "$folder/draft.gguf" <<'PROGRAM'
import ctypes
import sys

import gguf
import llama_cpp as L
import numpy as np

N, N_VOCAB, ROWS = 64, 32, range(6)
KEYS = {"context_length": 64, "embedding_length": N, "block_count": 1, "feed_forward_length": N, "head_count": 1}
KEYS |= {"vocab_size": N_VOCAB, "tokenizer_model": "no_vocab"}
CASES = {  # the file's value, that of the override, how the two are written; whether it is in effect, and logged
    "dflash.attention.layer_norm_rms_epsilon": (1e-5, 0.5, "add_float32", 1, "val_f64", True, True),
    "dflash.block_size": (8, 4, "add_uint32", 0, "val_i64", False, True),
    "dflash.sample_from_anchor": (True, False, "add_bool", 2, "val_bool", False, False),
    "tokenizer.chat_template": ("a", b"b", "add_string", 3, "val_str", False, False),
}
TENSORS = {f"blk.0.attn_{name}": (N, N) for name in ("q", "k", "v", "output")}
TENSORS |= {f"blk.0.ffn_{name}": (N, N) for name in ("gate", "up", "down")}
TENSORS |= {f"blk.0.{name}": (N,) for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")}
TENSORS |= {"token_embd": (N_VOCAB, N), "output": (N_VOCAB, N), "output_norm": (N,), "enc.output_norm": (N,)}
TENSORS |= {"fc": (N, 2 * N), "markov_w1": (N_VOCAB, 8), "markov_w2": (N_VOCAB, 8)}
said: list[str] = []
log = L.llama_log_callback(lambda _, text, __: said.append(text.decode()))
L.llama_log_set(log, None)


def loaded(key: str, of_file: int = 0, override: bool = False) -> tuple[tuple[bytes, bytes], bytes]:
    """What a model does, logits and chat template, and what it says of a key of which its file has this value."""
    file, random = gguf.GGUFWriter(sys.argv[1], "dflash"), np.random.default_rng(0)
    for name, value in KEYS.items():
        getattr(file, f"add_{name}")(value)
    for name, (*values, add, _, _, _, _) in CASES.items():
        value = values[of_file if name == key else 0]
        getattr(file, add)(name, value.decode() if isinstance(value, bytes) else value)
    file.add_array("dflash.target_layers", [0, 1])
    for name, shape in TENSORS.items():
        file.add_tensor(f"{name}.weight", random.standard_normal(shape, np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    settings, overrides = L.llama_model_default_params(), (L.llama_model_kv_override * 2)()
    overrides[0].key, overrides[0].tag = key.encode(), CASES[key][3]
    setattr(overrides[0].value, CASES[key][4], CASES[key][1])
    settings.kv_overrides = overrides if override else None
    model = L.llama_model_load_from_file(sys.argv[1].encode(), settings)
    context = L.llama_init_from_model(model, L.llama_context_default_params())
    batch, text = L.llama_batch_init(len(ROWS), 0, 1), ctypes.create_string_buffer(100)
    batch.n_tokens = len(ROWS)
    for i in ROWS:
        batch.token[i], batch.pos[i], batch.logits[i], batch.n_seq_id[i], batch.seq_id[i][0] = 3, i, True, 1, 0
    assert L.llama_decode(context, batch) == 0
    logits = np.ctypeslib.as_array(L.llama_get_logits(context), (len(ROWS), N_VOCAB)).tobytes()
    L.llama_model_meta_val_str(model, key.encode(), text, 100)
    does = logits, L.llama_model_chat_template(model, None)
    L.llama_free(context), L.llama_model_free(model)
    return does, text.value


same = True
for key, (*_, in_effect, logged) in CASES.items():
    own, other = loaded(key), loaded(key, of_file=1)
    said.clear()
    does, says = loaded(key, override=True)
    used = any("Using metadata override" in text for text in said)
    print(f"{key}: in effect: {does == other[0]}, logged as used: {used}, said to be {says.decode()}")
    same = same and own[0] != other[0] and does == (other if in_effect else own)[0]
    same = same and used == logged and says == own[1] != other[1]
if not same:
    raise SystemExit("llama.cpp has changed: which overrides are in effect, or logged, is another")
PROGRAM

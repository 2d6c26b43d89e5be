#!/usr/bin/env bash
# lm-eval 0.4.13 (PyPI), model local-completions, which asks for the prompt's logprobs by echo and max_tokens 1.
# Expected: it knows the tokens that it sent, and adds up the logprobs of these.
# Found: it drops the last entry of token_logprobs, whatever that is. If the one new token is an end token, and the
# server has no entry for it because it is not in the text, the last token of the continuation is lost: no error, a
# higher log-likelihood, and another answer in multiple choice, for exactly those texts that look complete.
# Here: with echo, the lead's logprobs have an entry for each token that was written, also for an end token.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "lm-eval[api]==0.4.13"
HOME="$folder" "$folder/venv/bin/python" - <<'PROGRAM'
from lm_eval.models.openai_completions import LocalCompletionsAPI

PROMPT = [[11, 12, 13, 14]]  # three tokens of a context, and one of the continuation


def log_likelihood(logprobs):
    top = [None if one is None else {"a": one} for one in logprobs]
    choice = {"index": 0, "logprobs": {"token_logprobs": logprobs, "top_logprobs": top}}
    ((found, _),) = LocalCompletionsAPI.parse_logprobs({"choices": [choice]}, tokens=PROMPT, ctxlens=[3])
    return found


with_end, without_end = log_likelihood([None, -1.0, -2.0, -4.0, -0.5]), log_likelihood([None, -1.0, -2.0, -4.0])
print(f"the continuation's logprob is -4.0; found {with_end} with the end token's entry, {without_end} without")
if (with_end, without_end) != (-4.0, 0.0):
    raise SystemExit("lm-eval has changed: it no longer drops the last entry")
PROGRAM

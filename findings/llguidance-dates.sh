#!/usr/bin/env bash
# llguidance 1.9.1: the formats `date`, `time` and `date-time` of JSON Schema.
# Expected: they take what RFC 3339 does, as the documents say that a format is enforced: 29 February in leap years, and
# second 60 only where UTC is 23:59:60.
# Instead: 29 February is taken in every year, and second 60 in every minute.
# Why it matters: Python's datetime and pydantic refuse both, so an answer that was held to a schema fails in the
# program that asked for it. A `pattern` beside the format is enforced, too, and can exclude them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q llguidance==1.9.1
"$folder/venv/bin/python" - <<'PY'
import json
import sys

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
TEXTS = {
    "date": ["2020-02-29", "2020-02-30", "2021-02-29"],
    "time": ["23:59:60Z", "23:59:61Z", "08:30:60Z"],
    "date-time": ["2020-02-29T08:30:59Z", "2020-02-30T08:30:59Z", "2021-02-29T08:30:60Z"],
}
same = True
for name, texts in TEXTS.items():
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "format": name}))
    for text, expected in zip(texts, (True, False, True)):
        matcher = LLMatcher(tokenizer, grammar)
        tokens = tokenizer.tokenize_str(json.dumps(text))
        taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        print(f"{name:9}  {text:20}  {'taken' if taken else 'refused'}")
        same = same and taken == expected
sys.exit(None if same else "the behaviour has changed")
PY

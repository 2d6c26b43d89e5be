#!/usr/bin/env bash
# llguidance 1.9.1, JSON schemas with a pattern, whose language is that of ECMA-262 by the standard.
# Expected: in a class, a character that is written twice is a character: "^[^~~]+$" excludes the tilde.
# Instead: && is an intersection, ~~ a symmetric difference and -- a difference, as in Rust: the class means something
# else, with no error and no warning: "^[^~~]+$" takes "~", and "^[a-z&&]+$" nothing.
# Why it matters: what is written under a schema must be valid, and patterns come from libraries that write ECMA-262 or
# Python. duo writes these characters with a backslash.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q llguidance==1.9.1
"$folder/venv/bin/python" -W ignore::FutureWarning - <<'PYTHON'
import json
import re
import sys

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
found = []
for pattern, text in (
    ("^[^~~]+$", "~"), ("^[^~]+$", "~"), ("^[a-z&&]+$", "ab"), ("^[a-z&]+$", "ab"),
    ("^[+--]+$", ","), (r"^[+-\-]+$", ","),
):  # fmt: skip
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    matcher, data = LLMatcher(tokenizer, grammar), [*json.dumps(text).encode()]
    taken = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
    print(f"{pattern:12} {text:4} matches: {re.search(pattern, text) is not None!s:6} accepted: {taken}")
    found.append(taken)
sys.exit(None if found == [True, False, False, True, False, True] else "the behaviour has changed")
PYTHON

#!/usr/bin/env bash
# llguidance 1.9.1, JSON schemas with a pattern. Expected: under "^[^\"]*$", a string without quotes. What happens: the
# text "\"" is accepted, a string that is a quote, although the class excludes it; likewise a backslash under [^\\].
# Classes that leave out a control character, or [a-z], are exact. It seems that a class with all control characters is
# written as every escape that JSON has.
# It matters because what is written under a schema must be valid: duo gives such classes without NUL.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re
import sys

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
found = {}
for pattern in (r'^[^"]*$', r"^[^\\]*$", r'^[^"\x00]*$', r"^[a-z]*$"):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    for text in ("a", '"', "\\"):
        matcher, data = LLMatcher(tokenizer, grammar), [*json.dumps(text).encode()]
        taken = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
        found[pattern, text] = taken
        matches = re.search(pattern, text) is not None
        print(f"{pattern:14} {json.dumps(text):6} matches: {matches!s:6} accepted: {taken}")
if not (found[r'^[^"]*$', '"'] and found[r"^[^\\]*$", "\\"] and not found[r'^[^"\x00]*$', '"']):
    sys.exit("the behaviour changed: llguidance excludes what the class excludes")
PYTHON

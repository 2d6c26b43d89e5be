#!/usr/bin/env bash
# llguidance 1.9.1, JSON schemas. Expected: {"\u0061": "x"} is refused under {"properties": {"a": {"type": "integer"}}},
# as JSON's "\u0061" is the key "a". What happens: additional properties are told from declared ones by their spelling,
# so a key with an escape is an additional one, with any value; likewise names that patternProperties match.
# It matters because what is written under a schema must be valid: duo writes the other names as a pattern, which is
# applied to the decoded name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys

import jsonschema
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
wrong = 0
for schema in ({"properties": {"a": {"type": "integer"}}}, {"patternProperties": {"^a": {"type": "integer"}}}):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "object", **schema}))
    for text in ('{"a":1}', '{"a":"x"}', r'{"\u0061":"x"}'):
        matcher, data = LLMatcher(tokenizer, grammar), [*text.encode()]
        taken = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
        valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        print(f"{json.dumps(schema):55} {text:15} valid: {valid!s:6} accepted: {taken}")
        wrong += taken and not valid
if not wrong:
    sys.exit("the behaviour changed: a key with an escape is the declared one")
PYTHON

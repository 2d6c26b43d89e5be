#!/usr/bin/env bash
# litellm 1.110.2 (PyPI); so do pi 1.6.0, Cline 3.0.65, llm 0.36, pydantic-ai 2.68.0 with the API of chats.
# Expected: an image in a tool's result stays in the message of the tool (LangChain 1.7.4 and vLLM have it there).
# Instead: it is moved to a message of the user, right after that of the tool, with a text of the client's own.
# Why it matters: a server that takes no images refuses one of the user. The message is in each later request, so the
# chat cannot go on. duo lead reads an image right after a tool's result as part of the result: a note takes its place.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
cat > "$folder/ask.py" <<'PYTHON'
import http.server, json, sys, threading

asked = []

class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
        choice = {"index": 0, "message": {"role": "assistant", "content": "Red."}, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

server = http.server.HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
import litellm

url = "data:image/png;base64,iVBORw0KGgo="
call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
result = [{"type": "text", "text": "the image"}, {"type": "image_url", "image_url": {"url": url}}]
messages = [
    {"role": "user", "content": "What is in red.png?"},
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "call_1", "content": result},
]
base = f"http://127.0.0.1:{server.server_port}/v1"
litellm.completion(model="openai/default", api_base=base, api_key="none", messages=messages)
for message in asked[0]:
    print(json.dumps(message))
*_, tool, last = asked[0]
moved = [tool["role"], last["role"]] == ["tool", "user"] and url not in json.dumps(tool) and url in json.dumps(last)
sys.exit(None if moved else "changed: the image is where the tool's result is")
PYTHON
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" "$folder/ask.py"

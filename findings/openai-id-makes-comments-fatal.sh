#!/usr/bin/env bash
# openai 3.57.0 (PyPI), a streamed chat completion; httpx-sse 0.4.3 reads events likewise, openai 6.49.0 (npm) does not.
# Expected: comments (": keep-alive") and ids of events ("id: 1") change nothing, alone or together: by the standard of
# server-sent events an empty line after a comment ends no event, as no data has come.
# Instead: each of them alone is harmless. After one id, however, the next comment, or a second empty line, is an event
# with empty data: openai reads it as JSON and ends the answer with a JSONDecodeError of Python's own, no APIError, and
# httpx-sse hands it to the program. So does "retry: 5" as an event of its own, without any id.
# Why: the last id is kept, as the standard wants for reconnecting, but is also asked for whether an event has begun.
# Why it matters: a server that is slow with a prompt keeps its connection open by comments, and a proxy may number the
# events of any server. duo lead's events for its page have comments; none of its streams has an id or a retry.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 httpx==0.28.1 httpx-sse==0.4.3
"$folder/venv/bin/python" - <<'PYTHON'
import http.server, json, sys, threading
import httpx, httpx_sse, openai

class Server(http.server.BaseHTTPRequestHandler):
    body = b""

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(Server.body)

def event(text):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n"

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
client = openai.OpenAI(base_url=url, api_key="x", max_retries=0)
NOTE, END = ": keep-alive\n\n", "data: [DONE]\n\n"
STREAMS = {
    "comment": (event("a") + NOTE + event("b") + END, "ab", 0),
    "id": ("id: 1\n" + event("a") + event("b") + END, "ab", 0),
    "id and comment": ("id: 1\n" + event("a") + NOTE + event("b") + END, "a, JSONDecodeError", 1),
    "retry alone": ("retry: 5\n\n" + event("a") + event("b") + END, ", JSONDecodeError", 1),
}
same = True
for name, (body, expected, n_expected) in STREAMS.items():
    Server.body, text = body.encode(), ""
    try:
        for chunk in client.chat.completions.create(model="m", messages=[], stream=True):
            text += chunk.choices[0].delta.content
    except Exception as error:
        text += f", {type(error).__name__}"
    with httpx.Client() as http_client, httpx_sse.connect_sse(http_client, "POST", url, content=b"{}") as source:
        n_empty = sum(not one.data for one in source.iter_sse())
    print(f"{name:15}  openai: {text:20}  httpx-sse: {n_empty} empty events")
    same = same and (text, n_empty) == (expected, n_expected)
sys.exit(None if same else "the behaviour has changed")
PYTHON

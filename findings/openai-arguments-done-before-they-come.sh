#!/usr/bin/env bash
# openai 3.57.0 (PyPI), client.chat.completions.stream(): its events and its final completion.
# Expected: tool_calls.function.arguments.done comes once for each call and has the call's arguments. Each delta of a
# call has an index, so the deltas of two calls may alternate; and those of two choices (n=2) may begin with either.
# Instead: "done" says of a call only that a delta of another one has come. If deltas alternate, its event has what was
# there by then: nothing, or half of a JSON text. The event with the whole arguments never comes; later ones still come
# as deltas, and the final completion has all, so nothing warns. Calls that begin in one chunk are right.
# Choices that do not begin in the order of their indexes end the same stream with an IndexError.
# Why it matters: a program that runs a tool on "done" runs it with the wrong arguments as soon as a server writes two
# calls or choices at once. duo lead writes a call in one chunk, and choices one after the other in their order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0
"$folder/venv/bin/python" - <<'PYTHON'
import http.server, json, sys, threading
import openai

class Server(http.server.BaseHTTPRequestHandler):
    deltas = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for i, delta, finish in Server.deltas:
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            chunk["choices"] = [{"index": i, "delta": delta, "finish_reason": finish}]
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

def call(i, text, name=None):
    first = {"id": f"call_{i}", "type": "function"} if name else {}
    return 0, {"tool_calls": [first | {"index": i, "function": {"name": name, "arguments": text}}]}, None

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}", api_key="x", max_retries=0)
a, b = [call(0, '{"x":', "f"), call(0, "1}")], [call(1, '{"y":', "g"), call(1, "2}")]
ends, texts = [(0, {}, "tool_calls")], [(i, {"content": "ab"[i]}, None) for i in (0, 1)]
WHOLE = [(0, '{"x":1}'), (1, '{"y":2}')]
found = {}
for name, deltas in {"one by one": a + b + ends, "alternating": [a[0], b[0], a[1], b[1], *ends],
                     "choices 0, 1": texts, "choices 1, 0": texts[::-1]}.items():  # fmt: skip
    Server.deltas, done, end = deltas, [], None
    try:
        with client.chat.completions.stream(model="m", messages=[], n=2) as stream:
            done = [(e.index, e.arguments) for e in stream if e.type.endswith("arguments.done")]
            choices = stream.get_final_completion().choices
            end = [(i, c.function.arguments) for i, c in enumerate(choices[0].message.tool_calls or [])]
            end = end or [c.message.content for c in choices]
    except IndexError as error:
        end = f"IndexError: {error}"
    found[name] = done, end
    print(f"{name:12}  done: {done}  final: {end}")
same = found["one by one"] == (WHOLE, WHOLE) and found["alternating"] == ([(0, '{"x":'), (1, '{"y":')], WHOLE)
same = same and found["choices 0, 1"][1] == ["a", "b"] and str(found["choices 1, 0"][1]).startswith("IndexError")
sys.exit(None if same else "the behaviour has changed")
PYTHON

#!/usr/bin/env bash
# litellm 1.110.2 (PyPI), completion(stream=True, n=2) from a server with OpenAI's API, and stream_chunk_builder().
# Expected: the chunks are passed on choice by choice, so that each choice has its finish_reason, once.
# Instead: the first finish_reason of the stream is passed on (in a chunk of its own), and no other one. All texts still
# come, also after it. stream_chunk_builder() then gives every choice without a reason "stop": a second choice that the
# server has cut off ("length") counts as complete. Without streaming, both reasons are right.
# Why it matters: who takes several choices and drops what was cut off keeps half texts; a client of the stream that
# waits for a reason of each choice has none. duo lead writes choices one after the other, each with its own reason.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2 openai==3.3.0
cat > "$folder/ask.py" <<'PYTHON'
import http.server, json, sys, threading
import litellm

class Server(http.server.BaseHTTPRequestHandler):
    chunks = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        is_stream = json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("stream")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.end_headers()
        head = {"id": "1", "created": 1, "model": "m"}
        if is_stream:
            for i, text, reason in Server.chunks:
                choice = {"index": i, "delta": {"content": text} if text else {}, "finish_reason": reason}
                document = head | {"object": "chat.completion.chunk", "choices": [choice]}
                self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            return
        texts = {i: "".join(t for j, t, _ in Server.chunks if j == i) for i in (0, 1)}
        choices = [{"index": i, "message": {"role": "assistant", "content": texts[i]}, "finish_reason": reason}
                   for i, _, reason in Server.chunks if reason]  # fmt: skip
        self.wfile.write(json.dumps(head | {"object": "chat.completion", "choices": choices}).encode())

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}/v1"

def ask(**more):
    messages = [{"role": "user", "content": "Hello."}]
    return litellm.completion(model="openai/m", api_base=base, api_key="x", n=2, messages=messages, **more)

def reasons(answer):
    return [(one.index, one.message.content, one.finish_reason) for one in answer.choices]

a, b = [(0, "a", None), (0, "b", None), (0, "", "stop")], [(1, "c", None), (1, "d", None), (1, "", "length")]
same = True
for order, Server.chunks in {"in turn": a + b, "alternating": [x for pair in zip(a, b) for x in pair]}.items():
    chunks = list(ask(stream=True))
    passed = [(c.index, c.finish_reason) for chunk in chunks for c in chunk.choices if c.finish_reason]
    whole, rebuilt = reasons(ask()), reasons(litellm.stream_chunk_builder(chunks))
    print(f"{order}:\n  not streamed  {whole}\n  streamed      {rebuilt}, reasons in the chunks: {passed}")
    same = same and whole == [(0, "ab", "stop"), (1, "cd", "length")] and passed == [(0, "stop")]
    same = same and rebuilt == [(0, "ab", "stop"), (1, "cd", "stop")]
sys.exit(None if same else "the behaviour has changed")
PYTHON
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" "$folder/ask.py"

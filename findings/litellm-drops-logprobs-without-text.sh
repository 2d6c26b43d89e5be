#!/usr/bin/env bash
# litellm 1.110.2 (PyPI), completion(stream=True, logprobs=True) from a server with OpenAI's API.
# Expected: the logprobs of all tokens come, also those of a token whose chunk has no text. A character of several
# tokens is such a case: OpenAI's logprobs have `bytes`, since only the last of these tokens completes the text.
# Instead: a chunk with an empty text is left out together with its logprobs. Of four tokens two have a logprob; the
# text is right, and nothing warns. Without streaming there are four.
# Why it matters: the sum of the logprobs is too high, the more so the more characters have several tokens (Chinese with
# a small vocabulary), and `bytes` that are put together give no text. A chunk of duo lead has all logprobs since the
# last chunk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2 openai==3.3.0
cat > "$folder/ask.py" <<'PYTHON'
import http.server, json, sys, threading
import litellm

# A text of two characters: "a", and the euro sign in three tokens of one byte each.
TOKENS = [("a", [97], -1.0), ("", [226], -2.0), ("", [130], -3.0), ("\u20ac", [172], -4.0)]

def logprobs(tokens):
    return {"content": [{"token": "t", "bytes": b, "logprob": p, "top_logprobs": []} for _, b, p in tokens]}

class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        is_stream = json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("stream")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.end_headers()
        head, choice = {"id": "1", "created": 1, "model": "m"}, {"index": 0, "finish_reason": None}
        if not is_stream:
            message = {"role": "assistant", "content": "".join(token[0] for token in TOKENS)}
            choice |= {"message": message, "logprobs": logprobs(TOKENS), "finish_reason": "stop"}
            self.wfile.write(json.dumps(head | {"object": "chat.completion", "choices": [choice]}).encode())
            return
        choices = [choice | {"delta": {"content": one[0]}, "logprobs": logprobs([one])} for one in TOKENS]
        for one in [*choices, choice | {"delta": {}, "finish_reason": "stop"}]:
            document = head | {"object": "chat.completion.chunk", "choices": [one]}
            self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
asked = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "x"}
asked |= {"messages": [{"role": "user", "content": "Hello."}], "logprobs": True}
chunks = [chunk.choices[0] for chunk in litellm.completion(**asked, stream=True)]
streamed = [one.logprob for c in chunks if getattr(c, "logprobs", None) for one in c.logprobs.content]
text = "".join(c.delta.content or "" for c in chunks)
whole = [one.logprob for one in litellm.completion(**asked).choices[0].logprobs.content]
print(f"not streamed: {whole}\nstreamed:     {streamed}, text {text!r}")
sys.exit(None if (whole, streamed) == ([-1, -2, -3, -4], [-1, -4]) else "the behaviour has changed")
PYTHON
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" "$folder/ask.py"

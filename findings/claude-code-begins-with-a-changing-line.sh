#!/usr/bin/env bash
# @anthropic-ai/claude-code 2.1.332 (npm).
# Expected: the system prompt is the same in each session, so that a server's cache has it (cache_control in its blocks
# asks for that).
# Instead: its first block is `x-anthropic-billing-header: cc_version=…`, whose last three digits depend on the
# question. They also change within a session, when the chat is compacted.
# Why it matters: all tokens of a prompt come after these digits, so 12,000 or more are read again each time; duo lead
# leaves the block out.
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
npm install --silent --prefix "$folder" @anthropic-ai/claude-code@2.1.332
cat > "$folder/server.py" <<'PYTHON'
import http.server, json, sys

class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(sys.argv[1] + "/asked", "a") as file:
            file.write(json.dumps([block["text"] for block in body["system"]]) + "\n")
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
        ends = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}
        events = [
            {"type": "message_start", "message": message | {"stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Yes."}},
            {"type": "content_block_stop", "index": 0},
            ends,
            {"type": "message_stop"},
        ]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

server = http.server.HTTPServer(("127.0.0.1", 0), Server)
with open(sys.argv[1] + "/port", "w") as file:
    file.write(str(server.server_port))
server.serve_forever()
PYTHON
python3 "$folder/server.py" "$folder" &
server=$!
until [ -s "$folder/port" ]; do sleep 0.1; done
mkdir "$folder/work"
cd "$folder/work"
export HOME=$folder ANTHROPIC_API_KEY=none ANTHROPIC_BASE_URL="http://127.0.0.1:$(cat "$folder/port")"
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
for question in "Is the sky blue?" "Is the grass green?"; do
    "$folder/node_modules/.bin/claude" -p "$question" < /dev/null
done
python3 - "$folder/asked" <<'PYTHON'
import json, sys

first, second = ([*map(json.loads, open(sys.argv[1]))][i] for i in (0, -1))
for blocks in (first, second):
    print(len(blocks), "blocks; the first:", blocks[0])
is_so = first[0] != second[0] and first[0].startswith("x-anthropic-billing-header:") and first[1:] == second[1:]
sys.exit(None if is_so else "changed: the first block is the same, or the others differ")
PYTHON

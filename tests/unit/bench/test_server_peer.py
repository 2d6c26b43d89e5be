"""llama-server: what is asked of it, and what is read from what it really answered."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duo.bench.contestant import Interrupted, Run
from duo.bench.peers import ParseError
from duo.bench.server_peer import ServerPeer, parse_events, server_command
from tests.unit.bench.recorded import JOB, N_TOKENS, PROMPT, TEXT, recorded

NEVER = threading.Event()

# A server that is not ready at once, keeps what it is asked, and answers what was recorded.
REPLAY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
folder = Path(sys.argv[1])
class Handler(BaseHTTPRequestHandler):
    n_asked = 0
    def do_GET(self):
        Handler.n_asked += 1
        self.send_response(200 if Handler.n_asked > 2 else 503)
        self.end_headers()
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with (folder / "asked").open("ab") as file:
            file.write(self.path.encode() + b" " + body + b"\\n")
        self.send_response(int(sys.argv[2]))
        self.end_headers()
        self.wfile.write((folder / "server.txt").read_bytes())
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def events() -> list[dict[str, Any]]:
    lines = recorded("server.txt").splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_what_llama_server_says() -> None:
    run = parse_events(JOB, events(), 0.25)
    assert run == Run(
        N_TOKENS,
        60.08045556658482,
        TEXT,
        prompt_tokens_per_s=188.45573982339008,
        first_token_s=0.25,
        n_verified=26,
        n_accepted=14,
    )


def test_without_a_draft_there_is_no_acceptance() -> None:
    found = events()
    del found[-1]["timings"]["draft_n"], found[-1]["timings"]["draft_n_accepted"]
    assert parse_events(JOB, found, None).n_verified is None


def test_a_text_that_is_too_short_or_has_no_end_is_an_error() -> None:
    with pytest.raises(ParseError, match="stopped after 24 of 25 tokens"):
        parse_events(replace(JOB, n_tokens=25), events(), None)
    with pytest.raises(ParseError, match="no timings"):
        parse_events(JOB, events()[:-1], None)


def test_how_it_is_called() -> None:
    plain = server_command(Path("a"), replace(JOB, draft=None), 2, 1, 3)
    assert "-md" not in plain
    assert plain[plain.index("-cram") + 1] == "0"
    drafting = server_command(Path("a"), JOB, 2, 1, 3)
    for name, value in (("-t", "2"), ("-td", "1"), ("-md", "draft.gguf"), ("--spec-draft-n-max", "3")):
        assert drafting[drafting.index(name) + 1] == value


def serve(folder: Path, status: int = 200) -> ServerPeer:
    (folder / "server.txt").write_text(recorded("server.txt"), encoding="utf-8")
    return ServerPeer("llama-server", [sys.executable, "-c", REPLAY, str(folder), str(status)])


def test_one_process_writes_all_texts_without_its_prompt_cache(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        runs = [server.write(JOB, NEVER) for _ in range(2)]
    assert [run.text for run in runs] == [TEXT, TEXT]
    assert all(run.first_token_s for run in runs)
    for line in (tmp_path / "asked").read_text().splitlines():
        path, _, body = line.partition(" ")
        assert path == "/completion"
        asked = json.loads(body)
        assert (asked["prompt"], asked["n_predict"], asked["cache_prompt"]) == (PROMPT, N_TOKENS, False)


def test_a_server_that_refuses_is_named(tmp_path: Path) -> None:
    with serve(tmp_path, status=500) as server, pytest.raises(ParseError, match="llama-server: status 500"):
        server.write(JOB, NEVER)


@pytest.mark.parametrize("timings", ["null", "{}", '{"predicted_n": null}'])
def test_a_server_of_another_version_is_named(tmp_path: Path, timings: str) -> None:
    with serve(tmp_path) as server:
        (tmp_path / "server.txt").write_text(f'data: {{"content": "x", "timings": {timings}}}\n', encoding="utf-8")
        with pytest.raises(ParseError, match="llama-server: cannot read its answer"):
            server.write(JOB, NEVER)


def test_a_server_that_does_not_start_says_why() -> None:
    code = "import sys; sys.exit('no such model')"
    with (
        ServerPeer("llama-server", [sys.executable, "-c", code]) as server,
        pytest.raises(ParseError, match="llama-server did not start: no such model"),
    ):
        server.write(JOB, NEVER)


def test_waiting_for_a_server_can_be_interrupted() -> None:
    stop = threading.Event()
    stop.set()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with ServerPeer("llama-server", command) as server, pytest.raises(Interrupted):
        server.write(JOB, stop)

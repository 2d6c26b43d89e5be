"""Contestants that are processes: llama.cpp's programs, its server, and duo's remote draft."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from duo.bench.contestant import Interrupted, Job, ParseError, Run
from duo.bench.lineup import own_modes
from duo.bench.peers import Program, run_program, version
from duo.bench.server_peer import ServerPeer
from duo.config import DraftConfig
from duo.loading import load
from tests.gguf_files import tiny_llama
from tests.unit.bench.recorded import JOB, N_TOKENS, PROMPT, TEXT, recorded

NEVER = threading.Event()
SLEEP = "import time; time.sleep(600)"

# A server that is not ready at once, keeps what it is asked, and answers what is in a file.
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
        answer = folder / "server.txt"
        self.send_response(200 if answer.exists() else 500)
        self.end_headers()
        if answer.exists():
            self.wfile.write(answer.read_bytes())
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(code: str, stop: threading.Event = NEVER) -> Run:
    program = Program("llama-completion", Path("a"), 1)
    return run_program(program.name, python(code), JOB, program.parse, stop)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; print('no such file\\n', file=sys.stderr); sys.exit(3)", " exited with 3: no such file"),
        ("import sys; sys.exit(1)", " exited with 1: no message"),
        ("print('a new format')", ": cannot read its output: no 'prompt eval"),
    ],
)
def test_a_program_that_fails_is_named(code: str, said: str) -> None:
    with pytest.raises(ParseError) as raised:
        run(code)
    assert f"llama-completion{said}" in str(raised.value)


def test_a_program_ends_when_the_benchmark_is_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        run(SLEEP, stop)


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"llama-cli: cannot run .*: Permission denied"):
        Program("llama-cli", tmp_path, 1).write(JOB, NEVER)


def test_the_version_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'version: 7 (abc)' >&2\necho built >&2\n", encoding="utf-8")
    program.chmod(0o755)
    assert (version(program), version(tmp_path)) == ("7 (abc)", None)
    assert version(Path(sys.executable)) is None, "its answer is of another kind"


def serve(folder: Path) -> ServerPeer:
    return ServerPeer([*python(REPLAY), str(folder)])


def test_one_server_writes_all_texts_without_its_prompt_cache(tmp_path: Path) -> None:
    (tmp_path / "server.txt").write_text(recorded("server.txt"), encoding="utf-8")
    with serve(tmp_path) as server:
        runs = [server.write(JOB, NEVER) for _ in range(2)]
        assert [run.text for run in runs] == [TEXT, TEXT]
        assert all(run.first_token_s for run in runs)
        for line in (tmp_path / "asked").read_text().splitlines():
            path, _, body = line.partition(" ")
            asked = json.loads(body)
            assert (path, asked["prompt"], asked["n_predict"]) == ("/completion", PROMPT, N_TOKENS)
            assert asked["cache_prompt"] is False
        for timings in ("null", "{}", '{"predicted_n": null}'):  # of other versions
            (tmp_path / "server.txt").write_text(f'data: {{"content": "x", "timings": {timings}}}\n', encoding="utf-8")
            with pytest.raises(ParseError, match="llama-server: cannot read its output"):
                server.write(JOB, NEVER)
        (tmp_path / "server.txt").unlink()
        with pytest.raises(ParseError, match="llama-server: status 500"):
            server.write(JOB, NEVER)


def test_a_server_that_does_not_start_is_named() -> None:
    failing = ServerPeer(python("import sys; sys.exit('no such model')"))
    with failing as server, pytest.raises(ParseError, match="llama-server did not start: no such model"):
        server.write(JOB, NEVER)


def test_waiting_for_a_server_can_be_interrupted() -> None:
    stop = threading.Event()
    stop.set()
    with ServerPeer(python(SLEEP)) as server, pytest.raises(Interrupted):
        server.write(JOB, stop)


def test_one_process_drafts_for_all_limits_of_remote(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02)
    job = Job(Path(), None, "the cat sat on the mat", Path(), 24, 128)
    limits, stop = {"2": DraftConfig(2, 4), "auto": DraftConfig(4, 8)}, threading.Event()
    with load(model, model, n_ctx=128, n_threads=1, draft_n_threads=1, profile=False) as engine, ExitStack() as stack:
        engine.call(lambda slot: slot.reserve(0, 128))
        plain, *remote = own_modes(engine, ["plain", "remote"], limits, stack)
        assert [contestant.name for contestant in remote] == ["remote k=2", "remote k=auto"]
        runs = [contestant.writer.write(job, NEVER) for contestant in (plain, *remote, *remote)]
        assert {run.text for run in runs} == {runs[0].text}
        assert [run.metrics is not None and run.metrics.draft_error for run in runs] == [None] * 5
        stop.set()
        with pytest.raises(Interrupted):
            remote[0].writer.write(job, stop)

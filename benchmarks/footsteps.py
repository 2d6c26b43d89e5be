"""Footsteps: the files of duo in which a function is entered for one token, and for the first event of a chat.

python -m benchmarks.footsteps KIND TARGET DRAFT FILE measures once, in a process of its own, and writes them to FILE.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import duo
from benchmarks import REPOSITORY
from benchmarks.contestants import Setup
from benchmarks.runner import Outcome, Scenario, verdict
from duo.errors import DuoError
from duo.llama.context import Context

_PACKAGE = f"{REPOSITORY / 'duo'}{os.sep}"
_PROMPT = "Write a short story about a lighthouse keeper and his dog."
_N_WARM = 2  # tokens of a decode that only warms up
_MOST = {"token": 22, "request": 26}
_ABOUT = {
    "token": "a token of `duo -m … -md … -p …`, from the first decode of the prompt to the first write",
    "request": "a chat request of a lead, from its first byte to its first event",
}


class Footsteps(Scenario):
    """-r is the number of processes that measure each; the median by the number of files is shown."""

    def run(self, setup: Setup) -> Outcome:
        lines, document, verdicts = list[str](), dict[str, Any](), []
        for kind, about in _ABOUT.items():
            found = [_measured(kind, setup, i) for i in range(setup.n_rounds)]
            files = sorted(found, key=len)[len(found) // 2]
            lines += [f"{about}: {len(files)} files of duo, in the order of entry:", "", f"    {' '.join(files)}", ""]
            document[kind] = files
            verdicts.append(verdict(f"files of duo for {about}", len(files), most=_MOST[kind]))
        return Outcome(lines, document, verdicts)


def _measured(kind: str, setup: Setup, i: int) -> list[str]:
    file = setup.folder / f"{kind} {i}.json"
    command = [sys.executable, "-m", "benchmarks.footsteps", kind, str(setup.target), str(setup.draft), str(file)]
    environment = {**os.environ, **setup.config(f"{kind} {i}")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if not file.exists():
        raise DuoError(f"{kind}: nothing was measured: {done.stderr[-300:]}")
    return list(json.loads(file.read_text(encoding="utf-8")))


class Tracer:
    """Notes the files of duo in which functions are entered, in all threads that begin after it."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.is_on = self.has_ended = False
        threading.setprofile(self._entered)
        sys.setprofile(self._entered)

    def begin(self) -> None:
        self.is_on = not self.has_ended

    def end(self) -> None:
        self.has_ended = self.has_ended or self.is_on
        self.is_on = False

    def _entered(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_entered = self.is_on and event == "call" and code.co_name != "<module>"
        if is_entered and code.co_filename.startswith(_PACKAGE):
            self.files.setdefault(code.co_filename.removeprefix(_PACKAGE))


class _Output(io.FileIO):
    """Standard output, with what to call before something is written."""

    before: Callable[[], None]

    def write(self, data: Any, /) -> int:
        self.before()
        return super().write(data) or 0


def _token(tracer: Tracer, models: Sequence[str]) -> None:
    from duo.cli.main import main  # noqa: PLC0415 - Ctrl-C

    decode = Context.decode

    def decoded(context: Context, tokens: Sequence[int], n_rows: int = 1) -> Any:
        if len(tokens) > _N_WARM:
            tracer.begin()
        return decode(context, tokens, n_rows)

    Context.decode = decoded  # type: ignore[assignment, method-assign]
    output = _Output(1, "w", closefd=False)
    output.before = tracer.end
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(output), encoding="utf-8")
    sys.argv = ["duo", "-m", models[0], "-md", models[1], "-p", _PROMPT, "-n", "8", "--ignore-eos"]
    main()


def _request(tracer: Tracer, models: Sequence[str]) -> None:
    from duo.server.lead_server import Lead  # noqa: PLC0415 - it takes a while

    body = {"messages": [{"role": "user", "content": _PROMPT}], "stream": True, "max_tokens": 8}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    with (
        duo.load(*models) as engine,
        Lead(engine, port=0) as lead,
        socket.create_connection(("127.0.0.1", lead.port)) as client,
    ):
        tracer.begin()
        client.sendall(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + data)
        found = b""
        while b"data:" not in found and (more := client.recv(65536)):
            found += more
        tracer.end()


if __name__ == "__main__":
    _kind, *_models, _file = sys.argv[1:]
    _tracer = Tracer()
    try:
        {"token": _token, "request": _request}[_kind](_tracer, _models)
    finally:
        sys.setprofile(None)
        if _tracer.has_ended:
            Path(_file).write_text(json.dumps(list(_tracer.files)), encoding="utf-8")

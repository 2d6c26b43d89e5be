"""Leads, remote drafts and RPC servers as processes, and contestants that are clients of a lead."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx

from benchmarks.contestants import Setup, patched
from duo.bench.contestant import Job, ParseError, Run
from duo.bench.process import Child, last_line
from duo.bench.server_peer import free_port, streamed, wait_until_healthy

_LOOK_S = 0.02
_PATIENCE_S = 120.0

# Loads the draft, and connects once the gate file exists.
_GATE = """
import time
from pathlib import Path
from duo.link.client import DraftClient
run = DraftClient.run
def wait(self):
    Path({ready!r}).touch()
    while not Path({gate!r}).exists():
        time.sleep(0.002)
    run(self)
DraftClient.run = wait
"""


class Server(Child):
    """`duo lead` or `duo rpc-server` on a local port, with one thread."""

    def __init__(self, setup: Setup, command: str, *options: str | Path) -> None:
        self.port = free_port()
        line = [*setup.duo, command, "--port", str(self.port), "-t", "1", *map(str, options)]
        super().__init__(line, setup.config(str(self.port)), subprocess.PIPE)
        self.url = f"http://127.0.0.1:{self.port}"

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics").text
        return sum(map(float, re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))

    def wait_for_drafts(self, n: int) -> None:
        """Wait until `n` remote drafts are connected to the lead."""
        wait_until(lambda: self.metric("duo:workers_connected") == n, self)

    def listens(self) -> bool:
        """Whether its port accepts connections."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False


def lead(setup: Setup, *options: str | Path) -> Server:
    """Start a lead that runs until the scenario ends."""
    found = setup.stack.enter_context(Server(setup, "lead", "-m", setup.target, *options))
    wait_until_healthy(found.url, found, threading.Event(), "duo lead")
    return found


def rpc_server(setup: Setup) -> Server:
    """An RPC server on the CPU, in a single process so that signals reach it."""
    server = Server(setup, "rpc-server", "-d", "CPU", "--until-eof")
    wait_until(server.listens, server)
    return server


def back(setup: Setup, port: int, command: Sequence[str] = ()) -> Child:
    """`duo back` with the draft, connected to a lead on a local port."""
    options = ["back", "-m", str(setup.draft), "--lead", f"ws://127.0.0.1:{port}", "-t", "1"]
    return Child([*(command or setup.duo), *options])


@contextmanager
def connecting_back(setup: Setup, server: Server) -> Iterator[Callable[[], object]]:
    """A loaded remote draft; the yielded function makes it connect."""
    ready, gate = setup.folder / "ready", setup.folder / "gate"
    for file in (ready, gate):
        file.unlink(missing_ok=True)
    with back(setup, server.port, patched(_GATE.format(ready=str(ready), gate=str(gate)))) as process:
        wait_until(ready.exists, process)
        yield gate.touch
    server.wait_for_drafts(0)


@contextmanager
def dying_back(setup: Setup, server: Server) -> Iterator[Callable[[], object]]:
    """A connected remote draft; the yielded function kills it."""
    with back(setup, server.port) as process:
        server.wait_for_drafts(1)
        yield partial(process.send, signal.SIGKILL)
    server.wait_for_drafts(0)


def wait_until(is_so: Callable[[], bool], process: Child) -> None:
    """Poll a condition. Raises ParseError if the process exits or the wait times out."""
    end = time.monotonic() + _PATIENCE_S
    while not is_so():
        if process.status is not None or time.monotonic() > end:
            raise ParseError(f"a process failed or timed out: {last_line(process.stderr)}")
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class StreamedRun(Run):
    """A streamed text, timed by the client: tokens/s of its halves and the longest pause between pieces."""

    first_half: float = 0.0
    second_half: float = 0.0
    longest_gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Client:
    """Requests a streamed text from a lead; `midway` yields a function to call at half of the text."""

    server: Server
    midway: Callable[[], AbstractContextManager[Callable[[], object]]] = lambda: nullcontext(lambda: None)

    def write(self, job: Job, stop: threading.Event) -> Run:  # noqa: ARG002 - a Writer
        with self.midway() as act:
            return stream(self.server, job.prompt, job.n_tokens, act)


def stream(
    server: Server, prompt: str, n_tokens: int, act: Callable[[], object] = lambda: None, **fields: object
) -> StreamedRun:
    """Request a text and call `act` at half of it. Raises ParseError."""
    request = {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "stream": True, "duo": True, **fields}
    began, times, pieces = time.monotonic(), list[float](), list[str]()
    counts, half, n_tokens_seen = list[int](), None, 0
    for event in streamed(f"{server.url}/v1/completions", request):
        if "error" in event:
            raise ParseError(f"duo lead: {event['error']}")
        if event.get("choices"):
            n_tokens_seen += event.get("duo", {"tokens": 0})["tokens"]
            if text := str(event["choices"][0]["text"]):
                times.append(time.monotonic())
                pieces.append(text)
                counts.append(n_tokens_seen - sum(counts))
            if half is None and times and n_tokens_seen >= n_tokens // 2:
                half = len(times)
                act()
    if half is None:
        raise ParseError(f"duo lead: no text after {n_tokens_seen} tokens")
    return StreamedRun(
        n_tokens_seen,
        _rate(counts, times, 0, len(times)),
        "".join(pieces).strip("\n"),
        first_token_s=times[0] - began,
        first_half=_rate(counts, times, 0, half),
        second_half=_rate(counts, times, half - 1, len(times)),
        longest_gap_s=max((b - a for a, b in pairwise(times)), default=0.0),
    )


def _rate(counts: Sequence[int], times: Sequence[float], first: int, end: int) -> float:
    """Tokens/s of the pieces after `first`."""
    seconds = times[end - 1] - times[first]
    return sum(counts[first + 1 : end]) / seconds if seconds else 0.0

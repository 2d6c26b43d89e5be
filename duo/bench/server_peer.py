"""llama-server: one process for all texts, queried over HTTP, with its prompt cache disabled."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from duo.bench.contestant import Interrupted, Job, ParseError, Run
from duo.bench.peers import SERVER, Drafting, checked
from duo.bench.process import Child, last_line

_LOOK_S = 0.05


class ServerPeer:
    """A server that starts on the first text and stops at the end of the block."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command` is without --host and --port, which are added on start."""
        self._command = list(command)
        self._process: Child | None = None
        self._url = ""

    def __enter__(self) -> ServerPeer:
        """The server is not started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.__exit__()

    def write(self, job: Job, stop: threading.Event) -> Run:
        """See Writer. Raises ParseError if the server fails or its response cannot be parsed."""
        if self._process is None:
            self._process = self._start(stop)
        request = {
            "prompt": job.prompt, "n_predict": job.n_tokens, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False, "stream": True,
        }  # fmt: skip
        found: list[dict[str, Any]] = []
        began, first_s = time.perf_counter(), None
        try:
            for event in streamed(f"{self._url}/completion", request):
                if stop.is_set():
                    raise Interrupted
                first_s = first_s or time.perf_counter() - began
                found.append(event)
        except (httpx.HTTPError, ValueError) as error:
            if stop.is_set():
                raise Interrupted from None
            raise ParseError(f"{SERVER}: {str(error) or type(error).__name__}") from None
        return checked(SERVER, job, lambda: read_events(found, first_s))

    def interrupt(self) -> None:
        """Kill the server: it sends no events during prefill. Thread-safe."""
        if self._process is not None:
            self._process.send(signal.SIGKILL)

    def _start(self, stop: threading.Event) -> Child:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [*self._command, "--host", "127.0.0.1", "--port", str(port)]
        try:
            process = Child(command)
        except OSError as error:
            raise ParseError(f"{SERVER}: cannot run {command[0]}: {error.strerror}") from None
        try:
            wait_until_healthy(self._url, process, stop)
        except BaseException:
            process.__exit__()
            raise
        return process


def wait_until_healthy(url: str, process: Child, stop: threading.Event, name: str = SERVER) -> None:
    """Wait until the server has loaded its model. Raises ParseError if it exits, or Interrupted."""
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=1.0).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        if stop.wait(_LOOK_S):
            raise Interrupted
        if process.status is not None:
            raise ParseError(f"{name} did not start: {last_line(process.stderr)}")


def streamed(url: str, request: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
    """The events of a streamed response. Raises httpx.HTTPError, or ValueError for invalid JSON."""
    with httpx.stream("POST", url, json=request, timeout=None) as answer:  # noqa: S113 - prefill may take long
        if answer.status_code != httpx.codes.OK:
            raise httpx.HTTPError(f"status {answer.status_code}: {answer.read().decode()[:200]}")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def server_command(program: Path, job: Job, threads: int, drafting: Drafting | None, more: Sequence[str]) -> list[str]:
    """The server's command line, without its address."""
    # Without prompt cache and checkpoints, each prompt is fully processed.
    common = ["-c", str(job.n_ctx), "-np", "1", "-t", str(threads), "-cram", "0", "-ctxcp", "0", *more]
    return [str(program), "-m", str(job.target), *common, *(drafting.options(job) if drafting is not None else ())]


def read_events(events: Sequence[dict[str, Any]], first_s: float | None) -> Run:
    """Parse a streamed response; its last event has the timings. Raises ParseError, KeyError, TypeError."""
    timings = events[-1].get("timings") if events else None
    if timings is None:
        raise ParseError(f"no timings in: {str(events[-1:])[:200]}")
    return Run(
        int(timings["predicted_n"]),
        timings["predicted_per_second"],
        "".join(event.get("content", "") for event in events).strip("\n"),
        prompt_tokens_per_s=timings["prompt_per_second"],
        first_token_s=first_s,
        n_verified=timings.get("draft_n"),
        n_accepted=timings.get("draft_n_accepted"),
    )


def free_port() -> int:
    """An unused port."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Leads, backs and RPC servers as processes that listen on real ports."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.command import Argument, command, environment

PATIENCE_S = 300.0  # until a test gives up; nothing is asserted about less


def wait_until(holds: Callable[[], object]) -> None:
    """Poll until `holds()`."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "the condition was never met"
        time.sleep(0.01)


class Served:
    """A process, its stderr so far in lines, and its stdout in pieces as it was read. Killed at the end of `with`."""

    def __init__(self, *arguments: Argument, before: str = "", env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command(*arguments, before=before),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
        )
        self.lines: list[str] = []
        self.writes: list[bytes] = []
        self._readers = [threading.Thread(target=read) for read in (self._read_stderr, self._read_stdout)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.finish()

    @property
    def stdout(self) -> bytes:
        return b"".join(self.writes)

    def wait_for(self, pattern: str, n: int = 1) -> re.Match[str]:
        """Wait for the n-th line of stderr that matches `pattern`."""
        end = time.monotonic() + PATIENCE_S
        while True:
            has_ended = not self._readers[0].is_alive()
            found = [match for line in list(self.lines) if (match := re.search(pattern, line))]
            if len(found) >= n:
                return found[n - 1]
            assert time.monotonic() < end and not has_ended, f"never said {pattern!r}: {self.lines}"  # noqa: PT018
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_to_children(self, number: signal.Signals) -> None:
        for child in self.facts.children():
            child.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send it to the child processes, then to the process."""
        self.send_to_children(number)
        self.send(number)

    @property
    def facts(self) -> psutil.Process:
        """What the system tells about it."""
        return psutil.Process(self.process.pid)

    def finish(self) -> int:
        """Wait until it exits. Returns the exit status."""
        self.send(signal.SIGCONT)
        status = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return status

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.lines.append(line.decode().rstrip("\n"))

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            while data := os.read(stream.fileno(), 65536):
                self.writes.append(data)


class LeadProcess(Served):
    """`duo lead` on a free port of this machine."""

    def __init__(
        self, target: Path, *more: Argument, before: str = "", env: dict[str, str] | None = None, wait: bool = True
    ) -> None:
        super().__init__("lead", "-m", target, "--port", "0", "-t", "1", *more, before=before, env=env)
        self.port = int(self.wait_for(r"listening on http://\S+:(\d+)")[1]) if wait else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=fields, headers=headers, timeout=PATIENCE_S)

    def write(self, prompt: str, n: int, **fields: Any) -> str:
        """The text after a raw prompt."""
        answer = self.post("/v1/completions", prompt=prompt, max_tokens=n, ignore_eos=True, **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def stream(self, prompt: str, n: int, **fields: Any) -> StreamedText:
        """The same as a stream."""
        return StreamedText(self.url, {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "stream": True, **fields})

    def metrics(self) -> dict[str, float]:
        """Each value by its name and labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        values = [value for key, value in self.metrics().items() if key.partition("{")[0] == name]
        assert values, f"there is no metric {name}"
        return sum(values)

    @property
    def n_accepted(self) -> float:
        """Candidates that were accepted so far."""
        return self.metric("spec_decode_num_accepted_tokens_total")


def assert_error(answer: Any, status: int, said: str = "") -> None:
    """An HTTP response that is an error in OpenAI's shape, whose message matches `said`."""
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert re.search(said, error["message"]), error["message"]
    assert len(answer.content) < 10_000


class BackProcess(Served):
    """`duo back` for a lead at `port`."""

    def __init__(self, draft: Path, port: int, *more: Argument) -> None:
        super().__init__("back", "-m", draft, "--lead", f"ws://127.0.0.1:{port}", "-t", "1", *more)


class RpcServer(Served):
    """`duo rpc-server` on a free port of this machine."""

    def __init__(self, *more: Argument, port: int = 0) -> None:
        self.port = port or free_port()
        super().__init__("rpc-server", "-p", str(self.port), "-t", "1", "-d", "CPU", *more)
        self.wait_for("duo: serving CPU")
        self.name = f"127.0.0.1:{self.port}"

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.send_all(signal.SIGKILL)
        super().__exit__()


def free_port() -> int:
    """A port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StreamedText:
    """A completion that is being streamed, read on a separate thread."""

    def __init__(self, url: str, request: dict[str, Any]) -> None:
        self.events: list[dict[str, Any]] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(url, request))
        self._thread.start()

    def _run(self, url: str, request: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=PATIENCE_S) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
        except Exception as error:
            self._error = error

    @property
    def _pieces(self) -> list[str]:
        texts = (event["choices"][0]["text"] for event in list(self.events) if event.get("choices"))
        return [text for text in texts if text]

    def wait_for_pieces(self, n: int) -> None:
        """Wait until `n` pieces have come, or the stream has ended."""
        wait_until(lambda: len(self._pieces) >= n or not self._thread.is_alive())

    def finish(self) -> str:
        """The whole text."""
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        assert not any("error" in event for event in self.events), self.events[-1]
        return "".join(self._pieces)

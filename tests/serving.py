"""Real leads and backs, as processes of their own that listen on real ports."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.command import Argument, command, environment

PATIENCE_S = 60.0  # until a test gives up; nothing is asserted about less


class Served:
    """A process, and what it has said on stderr so far. Leaving `with` ends it."""

    def __init__(
        self,
        *arguments: Argument,
        before: str = "",
        env: dict[str, str] | None = None,
        under: Sequence[Argument] = (),
    ) -> None:
        """`under` is a command that runs it."""
        self.process = subprocess.Popen(
            [*under, *command(*arguments, before=before)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
        )
        self._lines: list[str] = []
        self._told = threading.Condition()
        self._stdout: list[bytes] = []
        self._readers = [threading.Thread(target=read) for read in (self._read_stderr, self._read_stdout)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.finish()

    @property
    def lines(self) -> list[str]:
        """What it has said on stderr."""
        with self._told:
            return list(self._lines)

    @property
    def stdout(self) -> bytes:
        return b"".join(self._stdout)

    def wait_for(self, pattern: str, n: int = 1) -> re.Match[str]:
        """The n-th line of stderr in which `pattern` is found, as soon as it is there."""
        end = time.monotonic() + PATIENCE_S
        with self._told:
            while True:
                found = [match for line in self._lines if (match := re.search(pattern, line))]
                if len(found) >= n:
                    return found[n - 1]
                assert self._told.wait(end - time.monotonic()), f"never said {pattern!r}: {self._lines}"
                assert self.process.poll() is None or self._lines, "it has ended and said nothing"

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """To the process and all that it has started, these first."""
        send_to_children(self.process.pid, number)
        self.send(number)

    def finish(self) -> int:
        """Wait for its end. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        status = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return status

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._told:
                    self._lines.append(line.decode().rstrip("\n"))
                    self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            while data := os.read(stream.fileno(), 65536):
                self._stdout.append(data)


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
        """The same as it is written, on a thread of its own."""
        return StreamedText(self.url, {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "stream": True, **fields})

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"there is no metric {name}"
        return sum(map(float, values))


class BackProcess(Served):
    """`duo back` for a lead at `port`."""

    def __init__(self, draft: Path, port: int, *more: Argument, before: str = "") -> None:
        super().__init__("back", "-m", draft, "--lead", f"ws://127.0.0.1:{port}", "-t", "1", *more, before=before)


class RpcServer(Served):
    """`duo rpc-server` on a free port of this machine."""

    def __init__(
        self, *more: Argument, port: int = 0, address: str = "127.0.0.1", under: Sequence[Argument] = ()
    ) -> None:
        self.port = port or free_port()
        super().__init__("rpc-server", "-p", str(self.port), "-t", "1", "-d", "CPU", *more, under=under)
        self.wait_for("duo: serving CPU")
        self.name = f"{address}:{self.port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.send_all(signal.SIGKILL)
        super().__exit__(kind, error, traceback)


def send_to_children(pid: int, number: signal.Signals) -> None:
    """Send a signal to all that this process has started."""
    subprocess.run(["pkill", f"-{number.name.removeprefix('SIG')}", "-P", str(pid)], check=False)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StreamedText:
    """A completion that is being streamed."""

    def __init__(self, url: str, request: dict[str, Any]) -> None:
        self.text = ""
        self.n_tokens = 0
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []  # when pieces of text came
        self.error: Exception | None = None
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(url, request))
        self._thread.start()

    def _run(self, url: str, request: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=PATIENCE_S) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line[6:]))
        except Exception as error:
            self.error = error
        with self._more:
            self._more.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        with self._more:
            self.events.append(event)
            if event.get("choices") and event["choices"][0]["text"]:
                self.text += event["choices"][0]["text"]
                self.n_tokens += event["duo"]["tokens"]
                self.times.append(time.monotonic())
            self._more.notify_all()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait_for_pieces(self, n: int) -> None:
        """Until `n` pieces have come, or it has ended."""
        with self._more:
            self._more.wait_for(lambda: len(self.times) >= n or not self._thread.is_alive(), PATIENCE_S)

    def finish(self) -> str:
        """The whole text."""
        self._thread.join(10 * PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert not any("error" in event for event in self.events), self.events[-1]
        return self.text

"""Runs other programs, and says what they cost."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from duo.bench.contestant import Interrupted

_LOOK_S = 0.2  # how often to look whether to stop
_GRACE_S = 10.0  # for a process to end
_NEVER = threading.Event()


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process printed, and what it took."""

    stdout: str
    stderr: str
    status: int
    wall_s: float
    first_byte_s: float | None  # from the start of the process to its first byte on stdout
    peak_bytes: int


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that is measured: options decide, not the caller's environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}
    return kept | dict(variables or {})


def run_process(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    timeout_s: float = math.inf,
    stop: threading.Event = _NEVER,
) -> Cost:
    """Run a command to its end, reading both pipes as they fill; it does not outlive this process.

    Raises OSError if it cannot be started, Interrupted once `stop` is set, TimeoutError after `timeout_s`: it is
    killed then.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(variables),
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for this process, which ends that one
    )
    with ProcessGuard(process.pid):
        try:
            return _follow(process, start, start + timeout_s, stop)
        finally:
            if process.returncode is None:
                _signal(process.pid, signal.SIGKILL)
                process.wait()


def _signal(leader: int, number: signal.Signals) -> None:
    """To a process and all that it has started in its session: it may be a script around a program."""
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def _follow(process: subprocess.Popen[bytes], start: float, end: float, stop: threading.Event) -> Cost:
    assert process.stdout is not None
    assert process.stderr is not None
    pipes: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    first_byte_s = None
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(_LOOK_S)
            if stop.is_set():
                raise Interrupted
            if time.perf_counter() > end:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout and first_byte_s is None:
                    first_byte_s = time.perf_counter() - start
                pipes[key.fileobj] += chunk
        stdout, stderr = (bytes(text).decode("utf-8", "replace") for text in pipes.values())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(
        stdout,
        stderr,
        process.returncode,
        time.perf_counter() - start,
        first_byte_s,
        usage.ru_maxrss * unit,
    )


class ProcessGuard:
    """Kills a process, and what it has started in its session, if this one ends inside the block, however."""

    # Its standard input ends when this process does; otherwise it is told that all is well.
    _CODE = "import os, sys; os.read(0, 1) or os.killpg(int(sys.argv[1]), 9)"

    def __init__(self, pid: int) -> None:
        """`pid` leads a session of its own."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", self._CODE, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> ProcessGuard:
        """It watches from its start on."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch."""
        self._process.kill()
        with self._process:
            pass


class Child:
    """A process that works beside this one until end()."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Start it. Raises OSError."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - end() closes it
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                env=environment(variables),
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise
        self._guard = ProcessGuard(self._process.pid)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The last line that it wrote."""
        self._log.seek(0)
        return last_line(self._log.read().decode("utf-8", "replace"))

    def kill(self) -> None:
        """End it at once, from any thread."""
        _signal(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it, with patience at first."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        _signal(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self.kill()
        self._process.wait()
        self._guard.__exit__(None, None, None)
        self._log.close()


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")

"""Child processes, their output and resource usage."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from duo.diagnose.measure import Interrupted

if TYPE_CHECKING:
    from typing_extensions import Self

_LOOK_S = 0.1  # polling interval
_GRACE_S = 10.0  # for a process to exit after SIGTERM
_NEVER = threading.Event()


class Cost(subprocess.CompletedProcess[str]):
    wall_s, peak_bytes = 0.0, 0


class Child:
    """A process in a new session, killed at the end of the block."""

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> None:
        """Start it with `variables` added to the environment and LLAMA_* variables removed. Raises OSError."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}
        self._ended = threading.Event()
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - see __exit__
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=stdin, stdout=self._files[0], stderr=self._files[1], env=kept | dict(variables or {}),
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the child
        )  # fmt: skip
        self.pid = self._process.pid
        threading.Thread(target=self._reap, name="duo-child").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes of its session: the command may be a wrapper script."""
        self.send(signal.SIGKILL)
        self._ended.wait()
        for file in filter(None, (self._process.stdin, *self._files)):
            file.close()

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.returncode if self._ended.is_set() else None

    @property
    def stderr(self) -> str:
        return _text(self._files[1])

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of its session. Thread-safe."""
        if self.status is None:  # otherwise the PID may have been reused
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait(self, timeout_s: float = math.inf, stop: threading.Event = _NEVER) -> Cost:
        """Wait for it to exit. Raises TimeoutError, or Interrupted once `stop` is set."""
        end = time.perf_counter() + timeout_s
        while not self._ended.wait(_LOOK_S):
            if stop.is_set():
                raise Interrupted
            if time.perf_counter() > end:
                raise TimeoutError
        cost = Cost(self._process.args, self._process.returncode, *map(_text, self._files))
        cost.wall_s, cost.peak_bytes = self._wall_s, self._peak_bytes
        return cost

    def stop(self) -> int:
        """Send SIGTERM and wait. Returns the exit status. Raises TimeoutError."""
        self.send(signal.SIGTERM)
        return self.wait(_GRACE_S).returncode

    def _reap(self) -> None:
        _, status, usage = os.wait4(self.pid, 0)
        self._wall_s = time.perf_counter() - self._began
        self._peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()


def run_process(
    command: Sequence[str], variables: Mapping[str, str] | None = None, stop: threading.Event = _NEVER
) -> Cost:
    """Run a command until it exits, or kill it. Raises OSError if it cannot start, and as Child.wait()."""
    with Child(command, variables) as child:
        return child.wait(stop=stop)


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")

"""Child: a back that is a process of this machine, started again whenever it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from duo.errors import UsageError
from duo.link.back import JOINED

log = logging.getLogger("duo.child")

PLACED = "layers on devices"  # how the line begins that says what was chosen
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0  # before it is started again
_STEADY_S = 30.0  # it lived so long that the next end is a new story
_LEAVE_S = 2.0  # to end by itself


def own_command(*arguments: str) -> list[str]:
    """The command line of `duo` in a process of its own, which ends when its standard input does.

    Unlike `python -m duo` it does not run what happens to lie in the current folder.
    """
    code = "import sys; sys.path = [path for path in sys.path if path]; from duo.cli.main import main; main()"
    return [sys.executable, "-c", code, *arguments, "--until-eof"]


class Child:
    """Runs `duo back` from `with` to its end. What ends that process, such as a dying RPC server, ends only that.

    It also ends when this process does, however that comes about: its standard input ends then.
    """

    def __init__(self, name: str, arguments: Sequence[str], token: str) -> None:
        """`name` says what it is, in warnings; `arguments` are those of `duo back`."""
        self._name = name
        self._command = own_command("back", *arguments)
        # What is set for this process is not meant for that one.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
        self._environment = inherited | {"DUO_BACK_TOKEN": token}
        self._process: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._has_joined = False
        self._told: str | None = None  # what it ended of, as the user knows it
        self._thread = threading.Thread(target=self._run, name="duo-child")
        self.usage_error: str | None = None  # why it cannot be as it is asked for, if it never was

    def __enter__(self) -> Child:
        """Start it."""
        self._thread.start()
        return self

    def give_up(self) -> None:
        """Do not wait for it any more, from any thread or signal handler."""
        self._stop.set()
        self._settled.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.give_up()
        while self._thread.is_alive():  # it may be starting one just now
            if (process := self._process) is not None:
                _end(process)
            self._thread.join(_LEAVE_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has joined, or ended for the first time. False after `timeout_s`."""
        return self._settled.wait(timeout_s)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            status, last = self._run_once()
            if self._stop.is_set():
                return
            if status == UsageError.exit_status and not self._has_joined:
                self.usage_error = last
                self._settled.set()
                return
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began > _STEADY_S else pause_s
            if last != self._told:
                log.warning("%s: %s; the target goes on alone while it is tried again", self._name, last)
                self._told = last
            self._settled.set()
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run_once(self) -> tuple[int, str]:
        """Run it to its end. Returns its exit status and the last thing it said."""
        last = ""
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for this process, which ends that one
            )
        except OSError as error:
            return 1, f"its process cannot be started: {error.strerror}"
        with process as self._process:
            assert process.stderr is not None
            for line in process.stderr:
                last = line.strip().removeprefix("duo: ").removeprefix("error: ")
                self._hear(last)
        return process.returncode, last or f"it ended with status {process.returncode}"

    def _hear(self, line: str) -> None:
        log.debug("%s: %s", self._name, line)
        if line.startswith(PLACED):
            log.info("%s", line)
        if line.startswith(JOINED):
            if self._told is not None:
                log.info("%s: it is back", self._name)
            self._told = None
            self._has_joined = True
            self._settled.set()


def _end(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, or make it."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()

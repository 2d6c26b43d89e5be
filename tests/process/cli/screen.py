"""A real terminal whose screen and history can be looked at: tmux, without the user's settings."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path

import pytest

from tests.command import Argument, environment

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")

_numbers = count()


class Screen:
    """A command on a terminal of `columns` by `lines`; the screen stays when it has ended."""

    def __init__(self, arguments: list[Argument], columns: int, lines: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="duo-screen-")
        self._socket = f"duo-test-{os.getpid()}-{next(_numbers)}"
        self._status = Path(self._folder.name) / "status"
        line = " ".join(shlex.quote(os.fsdecode(argument)) for argument in arguments)
        tell = f"echo $? > {self._status}; tmux -L {self._socket} wait-for -S duo-done"
        script = shlex.quote(f"trap : INT; {line}; {tell}; exec sleep 1000")
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), f"sh -c {script}")
        self._tmux("set", "-g", "status", "off")
        self.resize(columns, lines)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
        self._tmux("kill-server")

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def finish(self) -> int:
        """Wait for the end of the command. Returns its exit status."""
        self._tmux("wait-for", "duo-done")
        return int(self._status.read_text())

    def shown(self, *options: str) -> str:
        """What is on the screen; with "-S", "-" after all that has left it at its top, with "-J" in whole lines."""
        text = self._tmux("capture-pane", "-p", *options)
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self._socket, *arguments],
            env=environment({"TERM": "screen-256color", "LC_ALL": "C.UTF-8"}),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout

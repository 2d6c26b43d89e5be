"""A real terminal whose screen and history can be looked at: tmux, without the user's settings."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from itertools import count

import pytest

from tests.command import Argument, environment

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")

_numbers = count()


class Screen:
    """A command on a terminal of `columns` by `lines`; the screen stays when it has ended."""

    def __init__(self, arguments: list[Argument], columns: int, lines: int) -> None:
        self._socket = f"duo-test-{os.getpid()}-{next(_numbers)}"
        end = f"tmux -L {self._socket} set -g @status $? ';' wait-for -S duo-done; exec sleep 1000"
        script = f"trap : INT; {shlex.join(map(os.fsdecode, arguments))}; {end}"
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, script, ";", "set", "-g", "status", "off")
        self.resize(columns, lines)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def finish(self) -> int:
        """Wait for the end of the command. Returns its exit status."""
        self._tmux("wait-for", "duo-done")
        return int(self._tmux("show", "-gv", "@status"))

    def shown(self, *options: str) -> str:
        """What is on the screen; with "-S", "-" after all that has left it at its top, with "-J" in whole lines."""
        text = self._tmux("capture-pane", "-p", *options)
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        env = environment({"TERM": "screen-256color", "LC_ALL": "C.UTF-8"})
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300).stdout

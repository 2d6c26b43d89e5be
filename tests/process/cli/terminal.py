"""A real pseudo-terminal with `duo` on it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import tempfile
import termios
import time

from tests.command import Argument, command, environment

CTRL_C = b"\x03"

_PATIENCE_S = 300.0  # only for a test that fails
# The new session's terminal is stdin, so that Ctrl-C reaches it as it does in life.
_TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Terminal:
    """`duo` in the foreground of a terminal of its own: stdin, stdout and, if wanted, stderr."""

    def __init__(
        self,
        *arguments: Argument,
        before: str = "",
        stderr_too: bool = False,
        env: dict[str, str] | None = None,
        size: tuple[int, int] = (0, 0),
    ) -> None:
        """`size` in columns and lines; 0: it is not known."""
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", size[1], size[0], 0, 0))
        # Newlines as written, nothing echoed, and output that nobody has read yet survives a Ctrl-C.
        attributes = termios.tcgetattr(terminal)
        attributes[1] &= ~termios.OPOST
        attributes[3] = (attributes[3] & ~termios.ECHO) | termios.NOFLSH
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the terminal
        self.process = subprocess.Popen(
            command(*arguments, before=_TAKE_TERMINAL + before),
            env=environment(env),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal if stderr_too else self._stderr,
            start_new_session=True,
        )
        os.close(terminal)
        self.shown = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        self._stderr.close()

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def hang_up(self) -> None:
        """Close the terminal, as when its window is closed."""
        os.close(self.master)
        self.master = os.open(os.devnull, os.O_RDWR)

    def read_until(self, text: bytes) -> None:
        """Wait until `text` is on the screen."""
        deadline = time.monotonic() + _PATIENCE_S
        while text not in self.shown:
            assert self._read(), self.shown
            assert time.monotonic() < deadline, self.shown

    def finish(self) -> int:
        """Read to the end. Returns the exit status; a negative number is the signal that killed it."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return self.process.wait(_PATIENCE_S)

    @property
    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def _read(self) -> bool:
        """Take what is on the screen. False when nobody writes any more."""
        readable, _, _ = select.select([self.master], [], [], _PATIENCE_S)
        try:
            data = os.read(self.master, 1 << 16) if readable else b""
        except OSError:  # EIO is how Linux says that the other end is closed
            data = b""
        self.shown += data
        return bool(data)

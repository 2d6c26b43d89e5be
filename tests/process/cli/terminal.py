"""A real pseudo-terminal with `duo` on it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios

from tests.command import Argument, command, environment

CTRL_C = b"\x03"

_PATIENCE_S = 300.0  # only for a test that fails
_COLUMNS, _LINES = 120, 24
# The new session's terminal is stdin, so that Ctrl-C reaches it as it does in life.
_TAKE_TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
"""


class Terminal:
    """`duo` in the foreground of a terminal of its own, and all that it has shown."""

    def __init__(self, *arguments: Argument, before: str = "", env: dict[str, str] | None = None) -> None:
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", _LINES, _COLUMNS, 0, 0))
        # Newlines as written, nothing echoed, and output that nobody has read yet survives a Ctrl-C.
        attributes = termios.tcgetattr(terminal)
        attributes[1] &= ~termios.OPOST
        attributes[3] = (attributes[3] & ~termios.ECHO) | termios.NOFLSH
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            command(*arguments, before=_TAKE_TERMINAL + before),
            env=environment(env),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        self.shown = b""
        self._n_seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def hang_up(self) -> None:
        """Close the terminal, as when its window is closed."""
        os.close(self.master)
        self.master = os.open(os.devnull, os.O_RDWR)

    def read_until(self, text: bytes) -> bytes:
        """Wait until `text` is shown, after what the last call has waited for. Returns what was shown before it."""
        while text not in self.shown[self._n_seen :]:
            assert self._read(), self.shown
        before, _, _ = self.shown[self._n_seen :].partition(text)
        self._n_seen += len(before) + len(text)
        return before

    def finish(self) -> int:
        """Read to the end. Returns the exit status; a negative number is the signal that killed it."""
        while self._read():
            pass
        return self.process.wait(_PATIENCE_S)

    def _read(self) -> bool:
        """Take what is on the screen. False when nobody writes any more."""
        readable, _, _ = select.select([self.master], [], [], _PATIENCE_S)
        try:
            data = os.read(self.master, 1 << 16) if readable else b""
        except OSError:  # EIO is how Linux says that the other end is closed
            data = b""
        self.shown += data
        return bool(data)

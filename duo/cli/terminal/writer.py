"""The generated text, on stdout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from duo.cli.terminal.console import say
from duo.speculation.types import Origin, Step

if TYPE_CHECKING:
    from duo.cli.terminal.live import Live

ACCEPTED = {Origin.DRAFT: b"\x1b[32m", Origin.LOOKUP: b"\x1b[36m"}
DIM, RESET = b"\x1b[2m", b"\x1b[0m"
_BOLD, _STRUCK = b"\x1b[1m", b"\x1b[9;2m"
# Control characters, which could drive a terminal: C0 except tab and newline, DEL, and C1 in UTF-8.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def marks_tokens(color: str) -> bool:
    """Whether to mark tokens with colours."""
    if color == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return color == "always"


class TextWriter:
    """Writes steps to stdout, without control characters if it is a terminal.

    With `marks`, accepted tokens are green (from a draft) or cyan (from the text itself), and every other step is bold,
    so that steps can be distinguished.
    """

    def __init__(
        self, *, marks: bool, stream: Live | BinaryIO | None = None, rejected: Callable[[int], bytes] | None = None
    ) -> None:
        """`rejected` decodes rejected candidates, which are shown struck through with `marks`."""
        self._stream: Live | BinaryIO = stream or sys.stdout.buffer
        self._on_terminal = self._stream.isatty()
        self._marks = marks
        self._rejected = rejected
        self._style = b""
        self._last = b""

    def prompt(self, text: str) -> None:
        """Write the prompt, unmarked. Raises BrokenPipeError."""
        self._write(text.encode())

    def step(self, step: Step) -> None:
        """Write one step. Raises BrokenPipeError."""
        texts = [self._harmless(piece) for piece in step.pieces]
        if plain := b"".join(texts):
            self._last = plain[-1:]
            self._write(self._marked(step, texts) if self._marks else plain)

    def end(self) -> None:
        """Begin a new line for what follows on a terminal, or in the same file."""
        if self._last not in (b"", b"\n") and (sys.stdout.isatty() or _streams_are_one()):
            say("")

    def _harmless(self, text: bytes) -> bytes:
        return _CONTROLS.sub(b"", text) if self._on_terminal else text

    def _marked(self, step: Step, texts: list[bytes]) -> bytes:
        accepted = ACCEPTED[step.source]
        tokens = [
            self._style + (accepted if i < step.n_accepted else b"") + text + RESET
            for i, text in enumerate(texts)
            if text
        ]
        self._style = b"" if self._style else _BOLD
        if self._rejected is not None and step.rejected:
            wrong = self._harmless(b"".join(map(self._rejected, step.rejected))).replace(b"\n", b" ")
            tokens.insert(step.n_accepted, _STRUCK + wrong + RESET)
        return b"".join(tokens)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # with PYTHONUNBUFFERED, writes may be partial
            rest = rest[self._stream.write(rest) :]
        self._stream.flush()


def _streams_are_one() -> bool:
    """Whether stdout and stderr are the same file, as with 2>&1."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except OSError:
        return False

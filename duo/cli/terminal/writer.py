"""The generated text, on stdout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from duo.cli.terminal.console import say
from duo.spec.types import Source, Step

if TYPE_CHECKING:
    from duo.cli.terminal.live import Live

_ACCEPTED = {Source.DRAFT: b"\x1b[32m", Source.LOOKUP: b"\x1b[36m"}
_BOLD = b"\x1b[1m"
# Control characters, which could drive a terminal: C0 except tab and newline, DEL, and C1 in UTF-8.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_DIM = b"\x1b[2m"
_STRUCK = b"\x1b[9;2m"
_RESET = b"\x1b[0m"


def marks_tokens(color: str) -> bool:
    """Whether to mark tokens with colours."""
    if color == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return color == "always"


def coloured(text: bytes, source: Source) -> bytes:
    """Text that consists of accepted candidates."""
    return _ACCEPTED[source] + text + _RESET


def dimmed(text: bytes) -> bytes:
    """Text that is not part of an answer."""
    return _DIM + text + _RESET


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
        self._bold = False
        self._last = b""

    def prompt(self, text: str) -> None:
        """Write the prompt, unmarked. Raises BrokenPipeError."""
        self._write(text.encode())

    def step(self, step: Step) -> None:
        """Write one step. Raises BrokenPipeError."""
        text = tuple(map(self._harmless, step.pieces))
        if not any(text):
            return
        self._write(self._marked(step, text) if self._marks else b"".join(text))
        self._last = b"".join(text)[-1:]

    def end(self) -> None:
        """Begin a new line for what follows on a terminal."""
        if self._last not in (b"", b"\n") and (sys.stdout.isatty() or _streams_are_one()):
            say("")

    def _harmless(self, text: bytes) -> bytes:
        return _CONTROLS.sub(b"", text) if self._on_terminal else text

    def _marked(self, step: Step, texts: tuple[bytes, ...]) -> bytes:
        style = _BOLD if self._bold else b""
        self._bold = not self._bold
        tokens = [
            style + (coloured(text, step.source) if i < step.n_accepted else text + _RESET)
            for i, text in enumerate(texts)
            if text
        ]
        if self._rejected is not None and step.rejected:
            wrong = self._harmless(b"".join(map(self._rejected, step.rejected))).replace(b"\n", b" ")
            tokens.insert(step.n_accepted, _STRUCK + wrong + _RESET)
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

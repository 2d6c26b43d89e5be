"""What TextWriter makes of steps."""

from __future__ import annotations

import io

import pytest

from duo.cli.terminal.writer import TextWriter
from duo.spec.types import Step

STEP = Step((1, 2, 3), 1, (b"one ", b"two\x1b[2J ", "\x9bthree\n".encode()), (7, 8))


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Unbuffered(io.BytesIO):
    """Takes three bytes at a time, as a pipe may without a buffer."""

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        return super().write(data[:3])


@pytest.mark.parametrize("stream", [io.BytesIO(), Unbuffered()])
def test_what_is_no_terminal_gets_the_text_byte_for_byte(stream: io.BytesIO) -> None:
    TextWriter(marks=False, stream=stream).step(STEP)
    assert stream.getvalue() == b"".join(STEP.pieces)


def test_a_terminal_cannot_be_driven() -> None:
    stream = Terminal()
    TextWriter(marks=False, stream=stream).step(STEP)
    assert stream.getvalue() == b"one two[2J three\n"


def test_accepted_guesses_are_green_and_rejected_ones_struck_through_where_they_were() -> None:
    stream = Terminal()
    TextWriter(marks=True, stream=stream, rejected=lambda token: f"<{token}>\n\x1b".encode()).step(STEP)
    reset = b"\x1b[0m"
    assert stream.getvalue() == (
        b"\x1b[32mone " + reset + b"\x1b[9;2m<7> <8> " + reset + b"two[2J " + reset + b"three\n" + reset
    )

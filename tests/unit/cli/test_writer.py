"""What TextWriter makes of steps."""

import io

import pytest

from duo.cli.terminal.writer import TextWriter, marks_tokens
from duo.speculation.types import Step

STEP = Step((1, 2, 3), 1, (b"one ", b"two\x1b[2J ", "\x9bthree\n".encode()), (7, 8))


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Unbuffered(io.BytesIO):
    """Takes three bytes at a time, as a pipe may without a buffer."""

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        return super().write(data[:3])


def test_a_pipe_gets_the_bytes_of_the_text_and_a_terminal_no_control_sequences() -> None:
    for stream, text in ((Unbuffered(), b"".join(STEP.pieces)), (Terminal(), b"one two[2J three\n")):
        TextWriter(marks=False, stream=stream).step(STEP)
        assert stream.getvalue() == text


def test_accepted_candidates_are_green_and_rejected_ones_are_struck_through_in_place() -> None:
    stream = Terminal()
    TextWriter(marks=True, stream=stream, rejected=lambda token: f"<{token}>\n\x1b".encode()).step(STEP)
    reset = b"\x1b[0m"
    assert stream.getvalue() == (
        b"\x1b[32mone " + reset + b"\x1b[9;2m<7> <8> " + reset + b"two[2J " + reset + b"three\n" + reset
    )


@pytest.mark.parametrize(
    ("color", "environment", "marked"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": ""}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("never", {}, False),
        ("always", {"NO_COLOR": "1"}, True),
    ],
)
def test_when_tokens_are_marked_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, color: str, environment: dict[str, str], marked: bool
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(Terminal()))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert marks_tokens(color) == marked

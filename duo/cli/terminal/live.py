"""--live: three lines below the text of a run that say how it goes, while it is written."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable

from rich.cells import get_character_cell_size

from duo.diagnose.pulse import Pulse, Reading
from duo.engine.metrics import Metrics
from duo.spec.schedule import Schedule

N_LINES = 3
REFRESH_S = 0.1
_FEWEST_ROWS = N_LINES + 2  # of a screen: in less there would be hardly any text
_LONGEST_BAR = 20
_TAB = 8
_SCHEDULES = {Schedule.ASYNC: "both at once", Schedule.SYNC: "in turns", Schedule.OFF: "the target alone"}

_DIM, _TARGET, _DRAFT = "2", "1", "32"  # as in the text: the draft is green
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CLEAR = "\x1b[J"  # from the cursor on
_DOWN = "\x1b[B\r"
# Scrolls if need be, and leaves the cursor in its column, over free rows.
_MAKE_ROOM = "\x1bD" * N_LINES + f"\x1b[{N_LINES}A"
# The cursor, and no line that is too long, because the terminal has just become narrower, takes two.
_BEGIN, _END = "\x1b[?25l\x1b7\x1b[?7l", "\x1b[?7h\x1b8\x1b[?25h"


def can_be_shown() -> bool:
    """Whether stdout is a terminal that knows what to do with escapes."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Live:
    """Writes text to the terminal, and under its end how the run goes.

    Nothing above the cursor is ever touched, and nothing is drawn by the number of a row: the text wraps, scrolls and
    stays as it would without this. What is under the cursor goes when the text needs the room, and comes back below it.

    A window that becomes narrower wraps what is under the cursor too. Some terminals make room for it at the top, also
    where the rows at the bottom are empty; when the cursor's row leaves there, tmux puts the cursor into the corner, in
    the midst of the status. So the lines are shown in half the width until as many rows of text are above the cursor,
    and then none wraps to more than two. This relies on a window that loses no more than half of its columns at once,
    and on a terminal that is not resized between two parts of one write.

    A text that fills its line to the edge leaves a terminal in a state that some forget when their cursor moves: the
    next character would not begin a line, but take the place of the last. So the cursor is left alone then.

    Used by the main thread. To a TextWriter it is the stream to write to.
    """

    def __init__(self, metrics: Metrics, *, marks: bool) -> None:
        """With `marks`, in the text's colours."""
        self._pulse = Pulse(metrics)
        self._marks = marks
        self._terminal = sys.stdout.fileno()
        self._signs = "█░│·" if sys.stdout.encoding.lower().startswith("utf") else "#-||"
        self._size = os.terminal_size((0, 0))
        self._line = ""  # of the text, since its last newline
        self._column = 0  # behind it
        self._n_above = 0  # rows of the screen above the cursor, at the least
        self._reading: Reading | None = None
        self._due = 0.0

    def __enter__(self) -> Live:
        """Begin, at the beginning of a line."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing but the text."""
        if self._reading is not None:
            self._put(_CLEAR if not self._at_edge else f"{_MAKE_ROOM}{_BEGIN}{_DOWN}{_CLEAR}{_END}")

    def write(self, data: bytes | memoryview) -> int:
        """Write some of the text, all of it at once."""
        self._measure()
        text = bytes(data).decode(errors="replace")
        plain = _COLOURS.sub("", text)
        n_rows, self._column = advance(self._column, plain, self._size.columns)
        self._n_above = min(self._n_above + n_rows, self._size.lines - 1 - N_LINES)
        self._line = (self._line + plain).rpartition("\n")[2]
        self._put(text.replace("\n", "\n" + _CLEAR) + (self._drawn() if n_rows else ""))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """It is a terminal."""
        return True

    def refresh(self) -> None:
        """Show how it goes now, unless that was shown a moment ago."""
        if time.perf_counter() < self._due:
            return
        self._due = time.perf_counter() + REFRESH_S
        self._measure()
        reading = self._pulse.read(time.perf_counter())
        if reading.n_tokens:  # before, a progress bar may be shown
            self._reading = reading
            self._put(self._drawn())

    def _drawn(self) -> str:
        """What shows the status, below the cursor."""
        if self._reading is None or self._at_edge or self._size.lines < _FEWEST_ROWS:
            return ""
        half = (self._size.columns - 1) // 2  # what a split leaves, beside its border
        width = half if self._n_above < N_LINES else 2 * half
        lines = status(self._reading, width, self._signs, self._style)
        return f"{_CLEAR}{_MAKE_ROOM}{_BEGIN}{''.join(_DOWN + line for line in lines)}{_END}"

    def _measure(self) -> None:
        """Follow the size of the terminal."""
        size, before = os.get_terminal_size(self._terminal), self._size
        self._size = size
        if size != before:
            self._n_above = 0
        if size.columns != before.columns:
            _, self._column = advance(0, self._line, size.columns)

    @property
    def _at_edge(self) -> bool:
        return 0 < self._size.columns <= self._column

    def _style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._marks and text else text

    def _put(self, text: str) -> None:
        """At once, so that nobody sees half of it."""
        data = memoryview(text.encode(sys.stdout.encoding, "replace"))
        while data:
            data = data[os.write(self._terminal, data) :]


def advance(column: int, text: str, width: int) -> tuple[int, int]:
    """Where a terminal of this width is after `text` that begins in `column`: so many rows further, and the column.

    `width` is the column behind a line that is full.
    """
    n_rows = 0
    for character in text:
        cells = get_character_cell_size(character)
        if character == "\n":
            column, n_rows = 0, n_rows + 1
        elif character == "\t":
            column = min(column // _TAB * _TAB + _TAB, width - 1)
        elif column + cells > width:
            column, n_rows = cells, n_rows + 1
        else:
            column += cells
    return n_rows, column


def status(reading: Reading, width: int, signs: str, style: Callable[[str, str], str]) -> list[str]:
    """The three lines, in at most `width` columns.

    `signs` are those of a bar's full and empty part, of the left edge and between two figures; `style` marks a text
    with the code of a colour.
    """
    edge, room = signs[2] + " ", max(0, width - 2)
    rates = [
        f"{_number(reading.rate)} tokens/s",
        f"{_number(reading.mean)} mean",
        f"{reading.n_tokens} tokens",
        *([f"{reading.accepted:.0%} accepted"] if reading.accepted is not None else []),
    ]
    ways = [f"{reading.schedule.value}: {_SCHEDULES[reading.schedule]}", f"{reading.n_pending} guesses ahead"]
    first, last = (style(_DIM, edge + _joined(parts, room, signs[3])) for parts in (rates, ways))
    return [first, style(_DIM, edge) + _bars(reading, room, signs, style), last]


def _joined(parts: list[str], room: int, sign: str) -> str:
    """As many of the parts as there is room for."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + 3 > room:
            break
        line += f" {sign} {part}"
    return line[:room]


def _bars(reading: Reading, room: int, signs: str, style: Callable[[str, str], str]) -> str:
    """How busy both models are."""
    bars = (("target", reading.target, _TARGET), ("draft", reading.draft, _DRAFT))
    length = min(_LONGEST_BAR, (room - 2 - sum(len(f"{name}  100%") for name, _, _ in bars)) // 2)
    if length < 1:
        return _joined([f"{name} {share:.0%}" for name, share, _ in bars], room, signs[3])
    shown = []
    for name, share, code in bars:
        n_full = round(share * length)
        bar = style(code, signs[0] * n_full) + style(_DIM, signs[1] * (length - n_full))
        shown.append(style(_DIM, f"{name} ") + bar + style(_DIM, f" {share:4.0%}"))
    return "  ".join(shown)


def _number(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"

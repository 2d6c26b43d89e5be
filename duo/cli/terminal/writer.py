"""The generated text, on stdout: of a run, with --live and a status below it, and the answers of a chat."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import BinaryIO

import rich.live
from rich.ansi import AnsiDecoder
from rich.cells import chop_cells
from rich.console import Console, Group
from rich.text import Text

from duo.cli.terminal.console import figure, say, stderr
from duo.engine.recorder import Recorder, Totals
from duo.engine.statistics import ratio
from duo.speculation.types import Origin, Step

REFRESH_S = 0.1  # between two updates of the status
_RECENT_S = 2.0  # that its rates and shares are about
_REDRAW_S = 0.03  # drawing takes about a millisecond
_BAR = 20  # cells
_ACCEPTED = {Origin.DRAFT: b"\x1b[32m", Origin.LOOKUP: b"\x1b[36m"}
_BOLD, _DIM, _STRUCK, _RESET = b"\x1b[1m", b"\x1b[2m", b"\x1b[9;2m", b"\x1b[0m"
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
        accepted = _ACCEPTED[step.source]
        tokens = [
            self._style + (accepted if i < step.n_accepted else b"") + text + _RESET
            for i, text in enumerate(texts)
            if text
        ]
        self._style = b"" if self._style else _BOLD
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


class Printer(TextWriter):
    """Writes answers of a chat to stdout; with `marks`, accepted candidates in colour."""

    _thinks = False

    def show(self, text: str, n_accepted: int, source: Origin | None) -> None:
        """Write a piece: see Show. Reasoning is written on terminals only. Raises BrokenPipeError."""
        if self._thinks is not (source is None):
            self._thinks = not self._thinks
            self._aside("[Start thinking]\n" if self._thinks else "\n[End thinking]\n\n")
        if source is None:
            self._aside(text)
            return
        drafted, own = (self._harmless(part.encode()) for part in (text[:n_accepted], text[n_accepted:]))
        self._last = (drafted + own or self._last)[-1:]
        self._write((_ACCEPTED[source] + drafted + _RESET if drafted and self._marks else drafted) + own)

    def _aside(self, text: str) -> None:
        if self._on_terminal and (data := self._harmless(text.encode())):
            self._last = data[-1:]
            self._write(_DIM + data + _RESET if self._marks else data)

    def end_answer(self) -> None:
        """Begin a new line, unless at the start of one."""
        self._thinks = False
        if self._last not in (b"", b"\n"):
            self._last = b""
            self._write(b"\n")

    def note(self, text: str) -> None:
        """Print a message that is not part of an answer."""
        said = _CONTROLS.sub(b"", text.encode(errors="replace")).decode()
        stderr().print(said, markup=False, style="dim" if self._marks else "")


# --live


class Live:
    """Writes text to the terminal with a status of three lines below it; the stream of a TextWriter.

    `rich.live` redraws the status and the line in which the text ends (of a long one, the last rows that fit). Lines
    are written once, as they end, so that the terminal's history has the same text as without a status.
    Used by the main thread.
    """

    def __init__(self, metrics: Recorder, *, marks: bool) -> None:
        """With `marks`, in the text's colours."""

        self._metrics = metrics
        self._totals = Totals(metrics, _RECENT_S)
        self._console = Console(
            file=sys.stdout, highlight=False, color_system="auto" if marks else None, soft_wrap=True
        )
        self._live = rich.live.Live(console=self._console, auto_refresh=False, transient=True)
        self._decode = AnsiDecoder().decode_line
        self._line = Text()  # the last line of the text
        self._status: list[Text] = []
        self._due = self._drawn = 0.0

    def __enter__(self) -> Live:
        """Begin, at the start of a line."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave only the text on the terminal."""
        if self._live.is_started:
            self._live.update(Text())
            self._live.stop()
        self._console.print(self._line, end="")

    @staticmethod
    def isatty() -> bool:
        """Whether stdout is a terminal that interprets escape sequences; otherwise there can be no status."""
        return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def write(self, data: bytes | memoryview) -> int:
        """Write whole characters, all of them."""
        encoding = self._console.encoding
        text = bytes(data).decode("utf-8", "replace").encode(encoding, "replace").decode(encoding)
        first, *others = text.split("\n")
        self._line.append_text(self._decode(first))
        for other in others:
            ended, self._line = self._line, self._decode(other)
            self._console.print(ended)  # which draws what was drawn last again, below it
            self._drawn = 0.0
        return len(data)

    def flush(self) -> None:
        """Leave it to refresh() to show what was written."""

    def refresh(self) -> None:
        """Show what was written, and the status, which changes at most once in REFRESH_S."""
        now = time.perf_counter()
        if now < self._drawn + _REDRAW_S:
            return
        if now >= self._due:
            self._due = now + REFRESH_S
            self._totals.update()
            if self._totals.n_tokens:  # before the first token, a progress bar may be shown
                is_ascii = self._console.options.ascii_only
                self._status = status(self._totals, self._metrics.n_pending, now, ascii_only=is_ascii)
                self._live.start()
        if self._status:
            width, height = self._console.size
            n_rows = max(1, height - len(self._status) - 1)
            self._live.update(Group(*wrapped(self._line, width)[-n_rows:], *self._status), refresh=True)
            self._drawn = now


def wrapped(line: Text, width: int) -> list[Text]:
    """The rows of a line as a terminal of `width` cells wraps it."""
    line.expand_tabs(8)
    ends = list(accumulate(map(len, chop_cells(line.plain, width))))
    rows = list(line.divide(ends[:-1]))
    for row in rows:
        row.no_wrap, row.overflow = True, "ignore"
    return rows


def status(totals: Totals, n_pending: int, now: float, *, ascii_only: bool = False) -> list[Text]:
    """The three lines of the status at `now` (time.perf_counter()), with `n_pending` candidates to be verified."""
    edge, between, full, empty = ("| ", " | ", "#", "-") if ascii_only else ("│ ", " · ", "█", "░")
    draft, lookup = totals.draft, totals.lookup
    rate, *shares = totals.recent(now) or (None, 0.0, 0.0)
    rates = [
        f"{figure(rate, '.1f')} tokens/s",
        f"{figure(totals.tokens_per_s, '.1f')} mean",
        f"{totals.n_tokens} tokens",
        *_share(ratio(draft.accepted + lookup.accepted, draft.verified + lookup.verified), "accepted"),
        *_share(ratio(lookup.accepted, totals.n_tokens) or None, "by lookup"),
    ]
    busy = Text(edge)
    for name, style, share in zip(("target", "draft"), ("bold not dim", "green not dim"), shares, strict=True):
        n = round(share * _BAR)
        busy.append(f"{name} ").append(full * n, style).append(f"{empty * (_BAR - n)} {share:4.0%}  ")
    schedule = [totals.schedule.value, f"{n_pending} candidates ahead"]
    if totals.metrics.n_prepared:
        schedule += [f"{totals.metrics.n_prepared} outcomes prepared", *_share(totals.hit_rate, "hits")]
    lines = [Text(edge + between.join(rates)), busy, Text(edge + between.join(schedule))]
    for line in lines:
        line.style, line.no_wrap, line.overflow = "dim", True, "crop"
    return lines


def _share(share: float | None, name: str) -> list[str]:
    return [f"{share:.0%} {name}"] if share is not None else []

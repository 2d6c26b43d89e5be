"""--live: a status below the generated text while it is written."""

import os
import sys
import time
from itertools import accumulate

import rich.live
from rich.ansi import AnsiDecoder
from rich.cells import chop_cells
from rich.console import Console, Group
from rich.text import Text

from duo.cli.terminal.console import figure
from duo.engine.recorder import Recorder, Totals
from duo.engine.statistics import ratio

REFRESH_S = 0.1
_RECENT_S = 2.0  # that rates and shares are about
_REDRAW_S = 0.03  # drawing takes about a millisecond
_BAR = 20  # cells


def can_be_shown() -> bool:
    """Whether stdout is a terminal that interprets escape sequences."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


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
        self._ansi = AnsiDecoder()
        self._line = Text()  # the last line of the text
        self._status: list[Text] = []
        self._due = 0.0
        self._drawn = 0.0

    def __enter__(self) -> "Live":
        """Begin, at the start of a line."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave only the text on the terminal."""
        if self._live.is_started:
            self._live.update(Text())
            self._live.stop()
        self._console.print(self._line, end="")

    def write(self, data: bytes | memoryview) -> int:
        """Write whole characters, all of them."""
        encoding = self._console.encoding
        text = bytes(data).decode("utf-8", "replace").encode(encoding, "replace").decode(encoding)
        first, *others = text.split("\n")
        self._line.append_text(self._ansi.decode_line(first))
        for other in others:
            ended, self._line = self._line, self._ansi.decode_line(other)
            self._update()  # printing draws it again, below what it prints
            self._console.print(ended)
        return len(data)

    def flush(self) -> None:
        """Show what was written, if the last time was not just before."""
        if self._status and time.perf_counter() >= self._drawn + _REDRAW_S:
            self._draw()

    def isatty(self) -> bool:
        """It is a terminal."""
        return True

    def refresh(self) -> None:
        """Update the status, at most once in REFRESH_S."""
        if time.perf_counter() < self._due:
            return
        self._due = time.perf_counter() + REFRESH_S
        self._totals.update()
        if self._totals.n_tokens:  # before the first token, a progress bar may be shown
            now, is_ascii = time.perf_counter(), self._console.options.ascii_only
            self._status = status(self._totals, self._metrics.n_pending, now, ascii_only=is_ascii)
            self._live.start()
            self._draw()

    def _draw(self) -> None:
        self._update()
        self._live.refresh()
        self._drawn = time.perf_counter()

    def _update(self) -> None:
        if self._status:
            width, height = self._console.size
            n_rows = max(1, height - len(self._status) - 1)
            self._live.update(Group(*wrapped(self._line, width)[-n_rows:], *self._status))


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
    styles = (("target", "bold not dim"), ("draft", "green not dim"))
    for (name, style), share in zip(styles, shares, strict=True):
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

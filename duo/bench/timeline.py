"""A timeline plot of target and draft events, one lane per model. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duo.diagnose.trace import LANES
from duo.engine.records import Event
from duo.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The Okabe-Ito palette. Drawn in this order: short events on top of long ones.
COLOURS = {
    "prompt": "#56b4e9",
    "decode": "#0072b2",
    "draft": "#009e73",
    "catch up": "#7fceb9",
    "probe": "#b2e2d6",
    "cancelled": "#bbbbbb",
    "wait": "#f0e442",
    "commit": "#555555",
    "verify": "#cc79a7",
    "publish": "#e69f00",
    "rollback": "#d55e00",
}
_HEIGHT = 0.8  # of a bar, in lanes
_WIDE = 0.02  # share of the width from which a bar has room for a number


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; sizes in inches. Raises UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - slow to load
    except ImportError:
        raise UsageError("plots need matplotlib: pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def timeline(axes: Axes, events: Sequence[Event], start: float, end: float) -> None:
    """Draw the events from `start` to `end`, in seconds of their clock, with one lane per model.

    The numbers are batch sizes of target decodes, in tokens.
    """
    shown = [event for event in events if event.start < end and event.end > start]
    lanes = [lane for lane in LANES if any(event.lane == lane for event in shown)]
    for name, colour in COLOURS.items():
        label: str | None = name
        for row, lane in enumerate(lanes):
            spans = [_clipped(event, start, end) for event in shown if (event.lane, event.name) == (lane, name)]
            if spans:
                where = (row - _HEIGHT / 2, _HEIGHT)
                axes.broken_barh(spans, where, facecolor=colour, edgecolor="white", linewidth=0.25, label=label)
                label = None
    for event in shown:
        left, width = _clipped(event, start, end)
        if event.name == "decode" and width > _WIDE * 1000 * (end - start):
            axes.text(left + width / 2, 0, str(event.n), color="white", ha="center", va="center", fontsize="small")
    axes.set_yticks(range(len(lanes)), [lane.replace(" ", "\n") for lane in lanes])
    axes.set_ylim(max(1, len(lanes)) - 0.5, -0.5)
    axes.set_xlim(0, 1000 * (end - start))
    axes.set_xlabel("ms")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _clipped(event: Event, start: float, end: float) -> tuple[float, float]:
    """Offset from `start` and duration of an event, in ms."""
    first = max(event.start, start)
    return 1000 * (first - start), 1000 * (min(event.end, end) - first)

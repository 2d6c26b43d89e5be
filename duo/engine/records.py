"""Records: what the threads of a text note while they compute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from duo.spec.schedule import Schedule
from duo.spec.types import Source

Interval = tuple[float, float]


class Event(NamedTuple):
    """An operation that took time, in seconds of the clock, or something that happened."""

    lane: str  # target, draft, remote draft or branches
    name: str
    start: float
    end: float
    n: int  # tokens


class StepRecord(NamedTuple):
    """One step of the target. From `start` to `end`, after verification, its tokens were added to the text."""

    start: float
    end: float
    n_candidates: int
    n_accepted: int
    n_tokens: int
    schedule: Schedule
    source: Source = Source.DRAFT  # of the candidates


Record = Event | StepRecord


def united(events: Iterable[Event]) -> list[Interval]:
    """The union of the intervals of `events`, ascending and disjoint."""
    intervals: list[Interval] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if intervals and start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], end))
        else:
            intervals.append((start, end))
    return intervals


def overlap(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """Seconds covered by both lists of intervals, each of which is ascending and disjoint."""
    a, b = list(first), list(second)
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total

"""Pulse: the current state of a run, from what it has recorded so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

from duo.engine.metrics import BranchRecord, Event, Interval, Metrics, overlap, united
from duo.spec.schedule import Schedule
from duo.spec.types import Source

_RECENT_S = 2.0

Recorded = TypeVar("Recorded", Event, BranchRecord)


class Reading(NamedTuple):
    """Rates in tokens/s; None while unknown."""

    n_tokens: int = 0
    rate: float | None = None  # in the last two seconds
    mean: float | None = None  # since the first token
    accepted: float | None = None  # share of the candidates verified so far
    target: float = 0.0  # share of the last two seconds in which it computed
    draft: float = 0.0
    n_pending: int = 0
    schedule: Schedule = Schedule.OFF
    found: float = 0.0  # share of the tokens so far that came from the text itself
    n_prepared: int = 0  # outcomes so far, each in a branch of the draft
    hits: float | None = None  # share of the target's contradictions of the draft so far that were prepared


class Pulse:
    """Reads the metrics of a run while its threads append to them. A reading costs no more as the run gets longer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._n_steps = self._n_tokens = self._n_verified = self._n_accepted = self._n_found = 0
        self._n_branch_records = self._n_prepared = self._n_resolutions = self._n_hits = 0

    def read(self, now: float = -math.inf) -> Reading:
        """The current state. One thread calls it. `now` (time.perf_counter()): to detect a stalled target."""
        steps = self._metrics.steps
        n_steps = len(steps)
        for step in steps[self._n_steps : n_steps]:
            self._n_tokens += step.n_tokens
            self._n_verified += step.n_candidates
            self._n_accepted += step.n_accepted
            self._n_found += step.n_accepted if step.source is Source.LOOKUP else 0
        self._n_steps = n_steps
        self._count_branches()
        if n_steps < 2:
            return Reading(self._n_tokens, n_pending=self._metrics.n_pending)
        end = steps[n_steps - 1].end
        # At least the last step, even if it took longer.
        i = n_steps - 2
        while i > 0 and steps[i - 1].end > end - _RECENT_S:
            i -= 1
        start = steps[i].end
        n_recent = sum(step.n_tokens for step in steps[i + 1 : n_steps])
        # As in Statistics, without the first step.
        n_timed, seconds = self._n_tokens - steps[0].n_tokens, end - steps[0].end
        if now - end > max(_RECENT_S, end - start):
            end = now  # the target has stalled
        return Reading(
            n_tokens=self._n_tokens,
            rate=n_recent / (end - start) if end > start else None,
            mean=n_timed / seconds if seconds > 0 else None,
            accepted=self._n_accepted / self._n_verified if self._n_verified else None,
            found=self._n_found / self._n_tokens if self._n_tokens else 0.0,
            target=self._verifying(start, end),
            draft=self._drafting(start, end),
            n_pending=self._metrics.n_pending,
            schedule=steps[n_steps - 1].schedule,
            n_prepared=self._n_prepared,
            hits=self._n_hits / self._n_resolutions if self._n_resolutions else None,
        )

    def _count_branches(self) -> None:
        """Add what has happened to branches since the last reading."""
        records, found = self._metrics.branch_records, self._metrics.resolutions
        n_records, n_found = len(records), len(found)
        self._n_prepared += sum(record.n_opened for record in records[self._n_branch_records : n_records])
        self._n_hits += sum(each.hit for each in found[self._n_resolutions : n_found])
        self._n_branch_records, self._n_resolutions = n_records, n_found

    def _verifying(self, start: float, end: float) -> float:
        """The share of the time from `start` to `end` in which the target computed."""
        recent = _since(self._metrics.events, start)
        return _busy(united(event for event in recent if event.name != "wait"), start, end)

    def _drafting(self, start: float, end: float) -> float:
        """The share of the time from `start` to `end` in which the draft computed."""
        metrics = self._metrics
        spans = united([*_since(metrics.draft_events, start), *_since(metrics.branch_records, start)])
        return _busy(spans, start, end)


def _since(events: Sequence[Recorded], start: float) -> list[Recorded]:
    """The events that ended after `start`, the newest first."""
    newest_first = (events[i] for i in range(len(events) - 1, -1, -1))
    return list(takewhile(lambda event: event.end > start, newest_first))


def _busy(spans: Sequence[Interval], start: float, end: float) -> float:
    """The share of the time from `start` to `end` covered by `spans`, which are disjoint."""
    return overlap(spans, [(start, end)]) / (end - start) if end > start else 0.0

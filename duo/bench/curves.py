"""Curves from the metrics of duo's runs: T(n), acceptance by position, and a timeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import NamedTuple

from duo.bench.contestant import Contestant
from duo.bench.results import Results
from duo.engine.metrics import Metrics
from duo.engine.records import Event

_LEAST_DECODES = 3  # per batch size, to show its time
_LEAST_VERIFIED = 10  # candidates per position, to show their acceptance
_SHOWN_DECODES = 30  # target decodes in the timeline
_PREFERRED = ("async", "auto", "remote", "sync")  # modes for the timeline


class Timeline(NamedTuple):
    """The first events of one text; `start` and `end` in seconds of their clock."""

    contestant: Contestant
    category: str
    events: list[Event]
    start: float
    end: float


def target_times(results: Results) -> dict[str, dict[int, float]]:
    """By mode: the median time in ms of a target decode of n tokens, for each n with enough decodes."""
    times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for mode, metrics in _own(results):
        for event in metrics.events:
            if event.name == "decode":
                times[mode][event.n].append(1000 * (event.end - event.start))
    return {
        mode: {n: median(found) for n, found in sorted(sizes.items()) if len(found) >= _LEAST_DECODES}
        for mode, sizes in times.items()
    }


def acceptance(results: Results) -> dict[str, list[float]]:
    """By drafting mode: the share of accepted candidates at each position of a batch."""
    verified: dict[str, Counter[int]] = defaultdict(Counter)
    accepted: dict[str, Counter[int]] = defaultdict(Counter)
    for mode, metrics in _own(results):
        for step in metrics.steps:
            verified[mode].update(range(step.n_candidates))
            accepted[mode].update(range(step.n_accepted))
    return {
        mode: [accepted[mode][i] / n for i, n in sorted(counts.items()) if n >= _LEAST_VERIFIED]
        for mode, counts in verified.items()
        if counts[0] >= _LEAST_VERIFIED
    }


def timeline(results: Results) -> Timeline | None:
    """The start of a text with draft events, preferably of a concurrent mode; None without such a text."""
    for mode in _PREFERRED:
        for sample in results.samples:
            metrics = sample.run.metrics
            if sample.contestant.mode == mode and metrics is not None and metrics.draft_events:
                decodes = [event for event in metrics.events if event.name == "decode"]
                events = [*metrics.events, *metrics.draft_events]
                end = decodes[:_SHOWN_DECODES][-1].end
                return Timeline(sample.contestant, sample.prompt.category, events, metrics.started, end)
    return None


def _own(results: Results) -> list[tuple[str, Metrics]]:
    samples = [sample for contestant in results.contestants for sample in results.counting(contestant)]
    return [(s.contestant.mode, s.run.metrics) for s in samples if s.run.metrics is not None]

"""Where the time of a recorded run went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from duo.diagnose.trace import LANES, Recording
from duo.engine.metrics import Event, Interval, overlap

COMPUTING = ("prompt", "decode", "draft", "catch up", "probe", "cancelled")  # what a model's hardware is busy with
GUESSING = ("draft", "catch up")
IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Share:
    """What one lane did under one name: `n` times, `seconds` in all."""

    lane: str
    name: str
    n: int
    seconds: float


@dataclass(slots=True)
class Shares:
    """What happened from `start` to `end`, in seconds from the beginning of a trace."""

    start: float
    end: float
    shares: list[Share] = field(default_factory=list)
    target_s: float = 0.0  # the target computed
    draft_s: float = 0.0  # a draft did
    overlap_s: float = 0.0  # both did
    n_drafted: int = 0
    n_verified: int = 0
    n_accepted: int = 0
    n_judged: int = 0  # candidates up to the first that was wrong: what came behind it was not looked at
    n_tokens: int | None = None  # None: the trace does not tell
    tokens_by_schedule: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """Length of the whole."""
        return self.end - self.start

    def share(self, lane: str, name: str) -> float:
        """The part of the time that `lane` spent on `name`."""
        found = sum(share.seconds for share in self.shares if (share.lane, share.name) == (lane, name))
        return found / self.seconds if self.seconds else 0.0


def first_token(recording: Recording) -> float:
    """When the first token was there, which ends the reading of the prompt; 0 if the trace does not tell."""
    prompts = [event.end for event in recording.events if event.name == "prompt"]
    return recording.steps[0].end if recording.steps else max(prompts, default=0.0)


def end_of(recording: Recording) -> float:
    """When the last thing ended."""
    return max((event.end for event in recording.events), default=0.0)


def where_it_went(recording: Recording, start: float, end: float) -> Shares:
    """What happened from `start` to `end`; what reaches over an edge counts with the part inside."""
    found = Shares(start, end)
    events = [
        event._replace(start=max(event.start, start), end=min(event.end, end))
        for event in recording.events
        if event.start < end and event.end > start
    ]
    for lane in LANES:
        own = [event for event in events if event.lane == lane]
        if own:
            found.shares += _shares(lane, own, end - start)
    target = united(event for event in events if event.lane == "target" and event.name in COMPUTING)
    draft = united(event for event in events if event.lane != "target" and event.name in COMPUTING)
    found.target_s, found.draft_s, found.overlap_s = _length(target), _length(draft), overlap(target, draft)
    found.n_drafted = sum(event.lane != "target" and event.name in GUESSING for event in events)
    if recording.steps:
        steps = [step for step in recording.steps if start < step.end <= end]
        found.n_verified = sum(step.n_candidates for step in steps)
        found.n_accepted = sum(step.n_accepted for step in steps)
        found.n_judged = sum(min(step.n_accepted + 1, step.n_candidates) for step in steps)
        found.n_tokens = sum(step.n_tokens for step in steps)
        for step in steps:
            found.tokens_by_schedule[step.schedule.value] += step.n_tokens
    return found


def united(events: Iterable[Event]) -> list[Interval]:
    """The times in which any of `events`, ascending by their start, went on."""
    intervals: list[Interval] = []
    for event in events:
        if intervals and event.start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], event.end))
        else:
            intervals.append((event.start, event.end))
    return intervals


def _shares(lane: str, events: Sequence[Event], seconds: float) -> list[Share]:
    """One lane's shares, the largest first, and last what is left over."""
    alone = _without_inner(events)
    by_name = sorted(zip(events, alone, strict=True), key=lambda pair: pair[0].name)
    shares = []
    for name, group in groupby(by_name, key=lambda pair: pair[0].name):
        times = [time_s for _, time_s in group]
        shares.append(Share(lane, name, len(times), sum(times)))
    shares.sort(key=attrgetter("seconds"), reverse=True)
    return [*shares, Share(lane, IDLE, 0, max(0.0, seconds - sum(alone)))]


def _without_inner(events: Sequence[Event]) -> list[float]:
    """The length of each event, ascending by their start, without those that lie in it."""
    lengths: list[float] = []
    open_ones: list[int] = []
    for i, event in enumerate(events):
        while open_ones and events[open_ones[-1]].end <= event.start:
            open_ones.pop()
        if open_ones:
            lengths[open_ones[-1]] -= min(event.end, events[open_ones[-1]].end) - event.start
        lengths.append(event.end - event.start)
        open_ones.append(i)
    return lengths


def _length(intervals: Sequence[Interval]) -> float:
    return sum(end - start for start, end in intervals)

"""How a recorded run spent its time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import TypeVar

from duo.diagnose.trace import BRANCHES, LANES, Recording
from duo.engine.metrics import Event, Interval, overlap, united
from duo.spec.types import Source

# Events in which a model computes.
COMPUTING = ("prompt", "decode", "draft", "catch up", "probe", "cancelled", "branch")
DRAFTING = ("draft", "catch up")
IDLE = "idle"
_APART = 0.1  # share of a decode that may overlap, or not, by chance
_FEW = 3  # decodes of a size: fewer may be outliers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Share:
    """The events of one lane and name: their number and total time."""

    lane: str
    name: str
    n: int
    seconds: float


@dataclass(slots=True)
class Shares:
    """What happened from `start` to `end`, in seconds from the start of a trace."""

    start: float
    end: float
    shares: list[Share] = field(default_factory=list)
    target_s: float = 0.0  # in which the target computed
    draft_s: float = 0.0  # in which a draft computed
    overlap_s: float = 0.0  # in which both computed
    n_drafted: int = 0  # with the tokens of branches
    n_verified: int = 0  # of the draft's candidates
    n_accepted: int = 0
    n_judged: int = 0  # verified candidates up to the first rejected one
    n_found: int = 0  # accepted candidates from the text itself
    n_prepared: int = 0  # outcomes, each in a branch
    n_contradicted: int = 0  # times that the target contradicted the draft while there were branches
    n_hits: int = 0  # of these, those whose outcome was prepared
    n_tokens: int | None = None  # None: not in the trace
    tokens_by_schedule: Counter[str] = field(default_factory=Counter)
    slowdown: float | None = None  # of the target's decodes while a draft computes; None: not known
    apart: bool | None = None  # whether the draft has hardware of its own; None: not known
    cores: int | None = None  # that the models share if not

    @property
    def seconds(self) -> float:
        """The length of the interval."""
        return self.end - self.start

    def share(self, lane: str, name: str) -> float:
        """The share of the time that `lane` spent on `name`, from 0 to 1."""
        found = sum(share.seconds for share in self.shares if (share.lane, share.name) == (lane, name))
        return found / self.seconds if self.seconds else 0.0


def first_token(recording: Recording) -> float:
    """The time of the first token, which ends the prefill; 0 if unknown."""
    prompts = [event.end for event in recording.events if event.name == "prompt"]
    return recording.steps[0].end if recording.steps else max(prompts, default=0.0)


def end_of(recording: Recording) -> float:
    """The end of the last event."""
    return max((event.end for event in recording.events), default=0.0)


def where_it_went(recording: Recording, start: float, end: float) -> Shares:
    """What happened from `start` to `end`; events that cross a boundary count in part."""
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
    found.slowdown = _slowdown(events, draft)
    found.apart, found.cores = _fact(recording, "apart", bool), _fact(recording, "cores", int)
    found.n_drafted = sum(event.lane != "target" and event.name in DRAFTING for event in events)
    found.n_drafted += sum(event.n for event in events if event.lane == BRANCHES)
    _count_branches(found, recording)
    if recording.steps:
        steps = [step for step in recording.steps if start < step.end <= end]
        drafted = [step for step in steps if step.source is Source.DRAFT]
        found.n_verified = sum(step.n_candidates for step in drafted)
        found.n_accepted = sum(step.n_accepted for step in drafted)
        found.n_judged = sum(min(step.n_accepted + 1, step.n_candidates) for step in drafted)
        found.n_found = sum(step.n_accepted for step in steps if step.source is Source.LOOKUP)
        found.n_tokens = sum(step.n_tokens for step in steps)
        for step in steps:
            found.tokens_by_schedule[step.schedule.value] += step.n_tokens
    return found


def _count_branches(found: Shares, recording: Recording) -> None:
    """Add the outcomes that were prepared, and what became of them."""
    prepared = (record for record in recording.branches if record.start < found.end and record.end > found.start)
    found.n_prepared = sum(record.n_opened for record in prepared)
    resolved = [each for each in recording.resolutions if found.start < each.time <= found.end]
    found.n_contradicted, found.n_hits = len(resolved), sum(each.hit for each in resolved)


def _slowdown(events: Iterable[Event], draft: Sequence[Interval]) -> float | None:
    """How much longer the target's decodes of a number of tokens take while a draft computes, at the median.

    None unless there are a few of both kinds: those that overlap with the draft for most of their time, and those that
    hardly do.
    """
    beside, alone = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for event in events:
        if event.lane == "target" and event.name == "decode" and (length := event.end - event.start) > 0:
            share = overlap([(event.start, event.end)], draft) / length
            if share <= _APART or share >= 1 - _APART:
                (alone if share <= _APART else beside)[event.n].append(length)
    sizes = [n for n in alone if min(len(alone[n]), len(beside[n])) >= _FEW]
    if not sizes:
        return None
    ratios = [(median(beside[n]) / median(alone[n]), min(len(alone[n]), len(beside[n]))) for n in sizes]
    return sum(ratio * weight for ratio, weight in ratios) / sum(weight for _, weight in ratios)


def _fact(recording: Recording, name: str, kind: type[T]) -> T | None:
    """A fact about the run; None if the trace does not have it."""
    value = recording.about.get(name)
    return value if isinstance(value, kind) else None


def _shares(lane: str, events: Sequence[Event], seconds: float) -> list[Share]:
    """One lane's shares, the largest first, then the idle time."""
    alone = _without_inner(events)
    by_name = sorted(zip(events, alone, strict=True), key=lambda pair: pair[0].name)
    shares = []
    for name, group in groupby(by_name, key=lambda pair: pair[0].name):
        times = [time_s for _, time_s in group]
        shares.append(Share(lane, name, len(times), sum(times)))
    shares.sort(key=attrgetter("seconds"), reverse=True)
    return [*shares, Share(lane, IDLE, 0, max(0.0, seconds - sum(alone)))]


def _without_inner(events: Sequence[Event]) -> list[float]:
    """The length of each event without the events nested in it; `events` are ascending by start."""
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

"""Metrics of one generation: events while it runs, statistics afterwards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duo.engine.clock import CLOCK, Clock
from duo.spec.schedule import Schedule
from duo.spec.types import Source

SHARED, TRANSLATED = "shared", "translated"  # vocabularies of a draft

Interval = tuple[float, float]


class Event(NamedTuple):
    """An operation that took time, in seconds of the clock."""

    lane: str  # target, draft or remote draft
    name: str
    start: float
    end: float
    n: int  # tokens


class BranchRecord(NamedTuple):
    """A decode of the draft that added a token to each of `n_branches` branches, of which `n_opened` are new."""

    start: float
    end: float
    n_branches: int
    n_opened: int


class Resolution(NamedTuple):
    """The target contradicted the draft at candidate `position` of a batch; a hit: its token there was prepared."""

    time: float
    position: int
    hit: bool


class StepRecord(NamedTuple):
    """One step of the target. From `start` to `end`, after verification, its tokens were added to the text."""

    start: float
    end: float
    n_candidates: int
    n_accepted: int
    n_tokens: int
    schedule: Schedule
    source: Source = Source.DRAFT  # of the candidates


@dataclass(frozen=True, slots=True)
class PromptStatistics:
    """Prefill."""

    tokens: int
    seconds: float
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class GenerationStatistics:
    """Generation. As in llama.cpp, rates exclude the first step, which belongs to the prefill."""

    tokens: int
    seconds: float
    tokens_per_s: float | None
    time_to_first_token_s: float | None
    decodes: int
    tokens_per_decode: float | None
    target_ms_per_decode: float | None
    waited_s: float  # time that the target waited for the draft
    tokens_by_schedule: dict[str, int]
    stop: str  # why the text ended: see duo.engine.text


@dataclass(frozen=True, slots=True)
class BranchStatistics:
    """Outcomes of verifications that the draft prepared while the target computed."""

    prepared: int  # outcomes, each in a branch of its own
    tokens: int  # drafted in branches
    contradictions: int  # of the draft by the target, each one an outcome that was prepared or not
    hits: int  # of these, the outcomes that were prepared
    hit_rate: float | None  # hits / contradictions
    hit_rate_by_position: list[float | None]  # by position in the batch; the one after the last candidate is the bonus


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """Drafting."""

    drafted: int  # tokens, with those of branches
    verified: int
    accepted: int
    accept_rate: float | None  # accepted / verified
    accept_rate_by_position: list[float]  # by position in the batch
    decodes_by_candidates: list[int]  # target decodes that verified 0, 1, … candidates
    ms_per_token: float | None
    computed_s: float  # time in which it computed, since the first token
    hidden: float | None  # share of the draft's time in which the target computed concurrently
    unused: float | None  # share of the drafted tokens that were not accepted; None if those are tokens of another kind
    error: str | None  # why it failed
    vocabulary: str | None  # shared; translated: the draft has another one; None: a remote draft does not say
    lost_to_translation: int | None  # guesses that were right, but in other tokens, or changed; None: not known
    branches: BranchStatistics | None = None  # None: there were none


@dataclass(frozen=True, slots=True)
class LookupStatistics:
    """Candidates from the text itself."""

    verified: int
    accepted: int
    accept_rate: float  # accepted / verified
    decodes: int  # of the target, that verified them
    accepted_by_schedule: dict[str, int]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of one generation; None where there is nothing to measure."""

    prompt: PromptStatistics
    generation: GenerationStatistics
    draft: DraftStatistics | None  # None: no draft was used
    lookup: LookupStatistics | None = None  # None: no candidate came from the text itself

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first step; None for fewer than two steps."""
        return self.generation.tokens_per_s


@dataclass(slots=True)
class Metrics:
    """What one generation records. Each of the two threads appends to its own lists."""

    clock: Clock = CLOCK
    started: float = math.nan  # default: now
    n_prompt: int = 0
    stop: str = "error"
    draft_error: str | None = None

    # The target thread's
    events: list[Event] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    resolutions: list[Resolution] = field(default_factory=list)

    # The draft's, on whichever thread it computes
    vocabulary: str | None = SHARED
    lost_to_translation: int | None = 0
    draft_events: list[Event] = field(default_factory=list)
    branch_records: list[BranchRecord] = field(default_factory=list)

    # Both threads'
    n_pending: int = 0  # candidates awaiting verification
    details: list[Event] | None = None  # for a trace only; None: no trace is written

    def __post_init__(self) -> None:
        if math.isnan(self.started):
            self.started = self.clock.now()

    def detail(self, lane: str, name: str, start: float, n_tokens: int = 0) -> float:
        """Record an operation from `start` to now, if a trace is written. Returns the time."""
        now = self.clock.now()
        if self.details is not None:
            self.details.append(Event(lane, name, start, now, n_tokens))
        return now

    def pending(self, n_candidates: int) -> None:
        """Record the number of candidates awaiting verification."""
        if self.details is not None and n_candidates != self.n_pending:
            now = self.clock.now()
            self.details.append(Event("queue", "candidates", now, now, n_candidates))
        self.n_pending = n_candidates

    def drafted(self, start: float, end: float, n_tokens: int, lane: str = "draft") -> None:
        """The draft made one token, for which it decoded `n_tokens`."""
        name = "draft" if n_tokens == 1 else "catch up"
        self.draft_events.append(Event(lane, name, start, end, n_tokens))

    def prepared(self, start: float, end: float, n_branches: int, n_opened: int) -> None:
        """A decode of the draft added a token to each of `n_branches` branches, of which `n_opened` are new.

        Its token for the draft's own chain, if any, is recorded by drafted(), with the same times. A branch that
        becomes the chain is not recorded again.
        """
        self.branch_records.append(BranchRecord(start, end, n_branches, n_opened))

    def resolved(self, position: int, hit: bool) -> None:
        """While there were branches, the target contradicted candidate `position` of a batch (its size: the bonus).

        `hit`: a branch had prepared the target's token there.
        """
        self.resolutions.append(Resolution(self.clock.now(), position, hit))

    def probed(self, start: float, end: float, n_tokens: int) -> None:
        """The draft decoded `n_tokens` of the text to be scored on them."""
        self.draft_events.append(Event("draft", "probe", start, end, n_tokens))

    def decoded(self, start: float, end: float, n_tokens: int) -> None:
        """The target decoded `n_tokens`."""
        self.events.append(Event("target", "decode" if self.steps else "prompt", start, end, n_tokens))

    def waited(self, start: float, end: float) -> None:
        """The target collected candidates, and may have waited for them."""
        self.events.append(Event("target", "wait", start, end, 0))

    def stepped(
        self,
        start: float,
        n_candidates: int,
        n_accepted: int,
        n_tokens: int,
        schedule: Schedule,
        source: Source = Source.DRAFT,
    ) -> None:
        """A step, whose candidates were verified until `start`, has added `n_tokens` to the text."""
        self.steps.append(StepRecord(start, self.clock.now(), n_candidates, n_accepted, n_tokens, schedule, source))

    def statistics(self) -> Statistics:
        """The statistics so far."""
        decodes = [event for event in self.events if event.name == "decode"]
        first = self.steps[0].end if self.steps else None
        end = self.steps[-1].end if self.steps else None
        n_tokens = sum(step.n_tokens for step in self.steps)
        n_timed = n_tokens - (self.steps[0].n_tokens if self.steps else 0)
        seconds = end - first if end is not None and first is not None else 0.0
        prompt_s = sum(event.end - event.start for event in self.events if event.name == "prompt")
        return Statistics(
            PromptStatistics(self.n_prompt, prompt_s, _rate(self.n_prompt, prompt_s)),
            GenerationStatistics(
                tokens=n_tokens,
                seconds=seconds,
                tokens_per_s=_rate(n_timed, seconds),
                time_to_first_token_s=first - self.started if first is not None else None,
                decodes=len(decodes),
                tokens_per_decode=_rate(n_timed, len(decodes)),
                target_ms_per_decode=_mean_ms(decodes),
                waited_s=sum(event.end - event.start for event in self.events if event.name == "wait"),
                tokens_by_schedule=self._tokens_by_schedule(),
                stop=self.stop,
            ),
            self._draft_statistics(),
            self._lookup_statistics(),
        )

    def _lookup_statistics(self) -> LookupStatistics | None:
        steps = self._steps_of(Source.LOOKUP)
        if not steps:
            return None
        n_verified, n_accepted = sum(step.n_candidates for step in steps), sum(step.n_accepted for step in steps)
        by_schedule = Counter[str]()
        for step in steps:
            by_schedule[step.schedule.value] += step.n_accepted
        return LookupStatistics(n_verified, n_accepted, n_accepted / n_verified, len(steps), dict(by_schedule))

    def _steps_of(self, source: Source) -> list[StepRecord]:
        """The steps that verified candidates of this source."""
        return [step for step in self.steps if step.n_candidates and step.source is source]

    def _draft_statistics(self) -> DraftStatistics | None:
        if not self.draft_events and not self.branch_records and self.draft_error is None:
            return None
        branches = self._branch_statistics()
        n_drafted = sum(event.name != "probe" for event in self.draft_events) + (branches.tokens if branches else 0)
        steps = self._steps_of(Source.DRAFT)
        n_verified, n_accepted = sum(step.n_candidates for step in steps), sum(step.n_accepted for step in steps)
        busy = [(event.start, event.end) for event in self.events if event.name != "wait"]
        drafting = united([*self.draft_events, *self.branch_records])
        return DraftStatistics(
            drafted=n_drafted,
            verified=n_verified,
            accepted=n_accepted,
            accept_rate=_rate(n_accepted, n_verified),
            accept_rate_by_position=_by_position(steps),
            decodes_by_candidates=self._decodes_by_candidates(),
            ms_per_token=_mean_ms([event for event in self.draft_events if event.name == "draft"]),
            computed_s=overlap(drafting, [(self.steps[0].end, self.steps[-1].end)]) if self.steps else 0.0,
            hidden=_rate(overlap(drafting, busy), sum(end - start for start, end in drafting)),
            unused=_rate(n_drafted - n_accepted, n_drafted) if self.vocabulary != TRANSLATED else None,
            error=self.draft_error,
            vocabulary=self.vocabulary,
            lost_to_translation=self.lost_to_translation,
            branches=branches,
        )

    def _branch_statistics(self) -> BranchStatistics | None:
        records, found = self.branch_records, self.resolutions
        if not records:
            return None
        n_hits = sum(resolution.hit for resolution in found)
        return BranchStatistics(
            prepared=sum(record.n_opened for record in records),
            tokens=sum(record.n_branches for record in records),
            contradictions=len(found),
            hits=n_hits,
            hit_rate=_rate(n_hits, len(found)),
            hit_rate_by_position=_hits_by_position(found),
        )

    def _decodes_by_candidates(self) -> list[int]:
        """Number of decodes that verified 0, 1, … of the draft's candidates, without the first step."""
        sizes = Counter(step.n_candidates for step in self.steps[1:] if step.source is Source.DRAFT)
        return [sizes[k] for k in range(max(sizes, default=-1) + 1)]

    def _tokens_by_schedule(self) -> dict[str, int]:
        tokens: Counter[str] = Counter()
        for step in self.steps[1:]:
            tokens[step.schedule.value] += step.n_tokens
        return dict(tokens)


def _by_position(steps: Sequence[StepRecord]) -> list[float]:
    """Acceptance rate at each position in the batch."""
    longest = max((step.n_candidates for step in steps), default=0)
    verified = [sum(step.n_candidates > i for step in steps) for i in range(longest)]
    accepted = [sum(step.n_accepted > i for step in steps) for i in range(longest)]
    return [a / v for a, v in zip(accepted, verified, strict=True)]


def _hits_by_position(found: Sequence[Resolution]) -> list[float | None]:
    """Share of the contradictions at each position in the batch that were prepared; None where there were none."""
    numbers = Counter(resolution.position for resolution in found)
    hits = Counter(resolution.position for resolution in found if resolution.hit)
    return [_rate(hits[i], numbers[i]) for i in range(max(numbers, default=-1) + 1)]


def united(events: Iterable[Event | BranchRecord]) -> list[Interval]:
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


def _rate(n: float, of: float) -> float | None:
    return n / of if of else None


def _mean_ms(events: list[Event]) -> float | None:
    return 1000 * sum(event.end - event.start for event in events) / len(events) if events else None

"""Metrics of one text: recorded by the threads that compute, and added up for all who read them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from duo.engine.clock import CLOCK, Clock
from duo.engine.records import BranchRecord, Event, Interval, Record, Resolution, StepRecord, overlap, united
from duo.engine.statistics import (
    Activity,
    BranchStatistics,
    CandidateTotals,
    DraftStatistics,
    GenerationStatistics,
    LookupStatistics,
    PromptStatistics,
    Statistics,
    ratio,
)
from duo.spec.schedule import Schedule
from duo.spec.types import Source

SHARED, TRANSLATED = "shared", "translated"  # vocabularies of a draft

Recorded = TypeVar("Recorded", Event, BranchRecord)


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
        return Totals(self).statistics()


class Totals:
    """Adds up what the threads of a text record, while they do. An update costs no more as the text gets longer.

    One thread calls it. Totals are those of the last update().
    """

    def __init__(self, metrics: Metrics, recent_s: float = 1.0) -> None:
        """`recent_s`: the seconds that recent_rate() and busy() are about."""
        self._metrics = metrics
        self._recent_s = recent_s
        self._n_seen = [0] * 6
        self.n_tokens = self._n_first = 0  # of the text, and of its first step
        self._first_s = self.last_s = 0.0  # the ends of the first step and the last
        self.recent = deque[StepRecord]()  # the steps of the last `recent_s`, at least two, and the one before
        self.draft, self.lookup = CandidateTotals(), CandidateTotals()
        self.time_by_activity = defaultdict[str, Activity](Activity)
        self.n_prepared = self._n_in_branches = 0  # outcomes, and tokens
        self._contradictions, self._hits = Counter[int](), Counter[int]()  # by position in the batch
        self._tokens_by_schedule = Counter[str]()
        self._decodes_by_candidates = Counter[int]()

    def update(self) -> list[Record]:
        """Add what was recorded since the last call, and return it, list by list."""
        log = self._metrics
        sources = (log.events, log.draft_events, log.details or (), log.steps, log.branch_records, log.resolutions)
        fresh: list[Record] = []
        for i, source in enumerate(sources):
            seen, self._n_seen[i] = self._n_seen[i], len(source)  # other threads append to it
            fresh += source[seen : self._n_seen[i]]
        for record in fresh:
            self._add(record)
        return fresh

    def _add(self, record: Record) -> None:
        if isinstance(record, Event):
            activity = self.time_by_activity[record.name]
            activity.n += 1
            activity.seconds += record.end - record.start
        elif isinstance(record, StepRecord):
            self._add_step(record)
        elif isinstance(record, BranchRecord):
            self.n_prepared += record.n_opened
            self._n_in_branches += record.n_branches
        else:
            self._contradictions[record.position] += 1
            self._hits[record.position] += record.hit

    def _add_step(self, step: StepRecord) -> None:
        if not self.recent:
            self._n_first, self._first_s = step.n_tokens, step.end
        else:  # the first step belongs to the prefill
            self._tokens_by_schedule[step.schedule.value] += step.n_tokens
            if step.source is Source.DRAFT:
                self._decodes_by_candidates[step.n_candidates] += 1
        self.n_tokens += step.n_tokens
        self.last_s = step.end
        (self.lookup if step.source is Source.LOOKUP else self.draft).add(step)
        self.recent.append(step)
        while len(self.recent) > 2 and self.recent[1].end <= self.last_s - self._recent_s:
            self.recent.popleft()

    @property
    def seconds(self) -> float:
        """Seconds since the first step."""
        return self.last_s - self._first_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first step."""
        return ratio(self.n_tokens - self._n_first, self.seconds)

    @property
    def hit_rate(self) -> float | None:
        """Share of the target's contradictions of the draft that were prepared."""
        return ratio(self._hits.total(), self._contradictions.total())

    def recent_rate(self, now: float = -math.inf) -> float | None:
        """Tokens/s of late; less while the target has stalled until `now` (of the clock)."""
        start, end = self._interval(now)
        return ratio(sum(step.n_tokens for step in self.recent) - self.recent[0].n_tokens, end - start) if end else None

    def busy(self, now: float = -math.inf) -> tuple[float, float]:
        """The shares of the recent time in which the target and the draft computed."""
        log, (start, end) = self._metrics, self._interval(now)
        target = united(event for event in _since(log.events, start) if event.name != "wait")
        draft = united([*_since(log.draft_events, start), *_since(log.branch_records, start)])
        seconds = (end - start) or math.inf
        return overlap(target, [(start, end)]) / seconds, overlap(draft, [(start, end)]) / seconds

    def _interval(self, now: float) -> Interval:
        """The recent time; (0, 0) before the second step."""
        if len(self.recent) < 2:
            return 0.0, 0.0
        start, end = self.recent[0].end, self.last_s
        return start, now if now - end > max(self._recent_s, end - start) else end

    def statistics(self) -> Statistics:
        """The statistics of the text so far."""
        self.update()
        time, stop = self.time_by_activity, self._metrics.stop
        n_prompt, prompt_s, n_timed = self._metrics.n_prompt, time["prompt"].seconds, self.n_tokens - self._n_first
        return Statistics(
            PromptStatistics(n_prompt, prompt_s, ratio(n_prompt, prompt_s)),
            GenerationStatistics(
                tokens=self.n_tokens,
                seconds=self.seconds,
                tokens_per_s=self.tokens_per_s,
                time_to_first_token_s=self._first_s - self._metrics.started if self.recent else None,
                decodes=time["decode"].n,
                tokens_per_decode=ratio(n_timed, time["decode"].n),
                target_ms_per_decode=time["decode"].mean_ms,
                waited_s=time["wait"].seconds,
                tokens_by_schedule=dict(self._tokens_by_schedule),
                stop=stop,
            ),
            self._draft_statistics(),
            self._lookup_statistics() if self.lookup.verified else None,
        )

    def _lookup_statistics(self) -> LookupStatistics:
        found = self.lookup
        rate, by_schedule = found.accepted / found.verified, dict(found.accepted_by_schedule)
        return LookupStatistics(found.verified, found.accepted, rate, found.decodes, by_schedule)

    def _draft_statistics(self) -> DraftStatistics | None:
        log, sizes = self._metrics, self._decodes_by_candidates
        if not log.draft_events and not log.branch_records and log.draft_error is None:
            return None
        n_drafted = self.time_by_activity["draft"].n + self.time_by_activity["catch up"].n + self._n_in_branches
        drafting = united([*log.draft_events, *log.branch_records])
        computing = [(event.start, event.end) for event in log.events if event.name != "wait"]
        return DraftStatistics(
            drafted=n_drafted,
            verified=self.draft.verified,
            accepted=self.draft.accepted,
            accept_rate=ratio(self.draft.accepted, self.draft.verified),
            accept_rate_by_position=self.draft.accept_rate_by_position,
            decodes_by_candidates=[sizes[k] for k in range(max(sizes, default=-1) + 1)],
            ms_per_token=self.time_by_activity["draft"].mean_ms,
            computed_s=overlap(drafting, [(self._first_s, self.last_s)]),
            hidden=ratio(overlap(drafting, computing), sum(end - start for start, end in drafting)),
            unused=ratio(n_drafted - self.draft.accepted, n_drafted) if log.vocabulary != TRANSLATED else None,
            error=log.draft_error,
            vocabulary=log.vocabulary,
            lost_to_translation=log.lost_to_translation,
            branches=self._branch_statistics() if log.branch_records else None,
        )

    def _branch_statistics(self) -> BranchStatistics:
        found, hits = self._contradictions, self._hits
        return BranchStatistics(
            prepared=self.n_prepared,
            tokens=self._n_in_branches,
            contradictions=found.total(),
            hits=hits.total(),
            hit_rate=self.hit_rate,
            hit_rate_by_position=[ratio(hits[i], found[i]) for i in range(max(found, default=-1) + 1)],
        )


def _since(records: Sequence[Recorded], start: float) -> list[Recorded]:
    """The records that ended after `start`, the newest first. Other threads may append."""
    newest_first = (records[i] for i in range(len(records) - 1, -1, -1))
    return list(takewhile(lambda record: record.end > start, newest_first))

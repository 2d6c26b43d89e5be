"""Recorder of one text: recorded by the threads that compute, and added up for all who read them."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from duo.engine.statistics import (
    INTERRUPTED,
    Activity,
    BranchStatistics,
    CandidateTotals,
    DraftStatistics,
    Event,
    GenerationStatistics,
    LookupStatistics,
    PromptStatistics,
    Record,
    Statistics,
    StepRecord,
    overlap,
    ratio,
)
from duo.speculation.controller import Controller
from duo.speculation.modes import Schedule
from duo.speculation.types import Origin

if TYPE_CHECKING:
    from duo.engine.request import Ending

SHARED, TRANSLATED = "shared", "translated"  # vocabularies of a draft


class Clock:
    """The clock of one generation. All that its threads wait for they wait for through it."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.perf_counter()

    def computed(self) -> float:
        """Seconds of processor time of this process."""
        return time.process_time()

    def condition(self) -> Condition:
        """A condition with a lock of its own."""
        return Condition(Lock())

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """A thread, not started yet."""
        return Thread(target=run, name=name)


@dataclass(slots=True)
class Recorder:
    """What the two threads of one generation record."""

    clock: Clock = field(default_factory=Clock)
    started: float = math.nan  # default: now
    n_prompt: int = 0
    paused_s: float = 0.0  # in which others were written
    ending: Ending | None = None  # of the text; None: it has not begun
    draft_error: str | None = None
    controller: Controller | None = None  # of its proposers; None: there were none

    # The target thread's
    steps: list[StepRecord] = field(default_factory=list)
    # Contradictions of the draft while there were branches, and those of which the outcome was prepared, by position
    contradictions: Counter[int] = field(default_factory=Counter)
    hits: Counter[int] = field(default_factory=Counter)
    alternatives: Counter[str] = field(default_factory=Counter)  # to candidates: verified and accepted

    # The draft's, on whichever thread it computes
    vocabulary: str | None = SHARED
    lost_to_translation: int | None = 0
    n_prepared: int = 0  # outcomes

    # Both threads'
    events: list[Event] = field(default_factory=list)
    n_pending: int = 0  # candidates awaiting verification
    details: list[Event] | None = None  # for a trace only; None: no trace is written

    def __post_init__(self) -> None:
        if math.isnan(self.started):
            self.started = self.clock.now()

    @property
    def stop(self) -> str:
        """Why the text has ended, such as END_OF_TEXT; INTERRUPTED as long as it has not."""
        return (self.ending is not None and self.ending.reason) or INTERRUPTED

    @property
    def stopped_by(self) -> str | None:
        """The stop string that has ended the text."""
        return self.ending.stopped_by if self.ending is not None else None

    def detail(self, lane: str, name: str, start: float, n_tokens: int) -> None:
        """Record an operation from `start` to now, if a trace is written."""
        if self.details is not None:
            self.details.append(Event(lane, name, start, self.clock.now(), n_tokens))

    def pending(self, n_candidates: int) -> None:
        """Record the number of candidates awaiting verification."""
        if self.details is not None and n_candidates != self.n_pending:
            self.detail("queue", "candidates", self.clock.now(), n_candidates)
        self.n_pending = n_candidates

    def drafted(self, start: float, end: float, n_tokens: int, lane: str = "draft") -> None:
        """The draft made one token, for which it decoded `n_tokens`."""
        self.events.append(Event(lane, "draft" if n_tokens == 1 else "catch up", start, end, n_tokens))

    def prepared(self, start: float, end: float, n_branches: int, n_opened: int) -> None:
        """The decode of drafted(), or another, added a token to each of `n_branches`, of which `n_opened` are new."""
        self.events.append(Event("branches", "branch", start, end, n_branches))
        self.n_prepared += n_opened

    def resolved(self, position: int, hit: bool) -> None:
        """The target contradicted candidate `position` (or the bonus); `hit`: a branch had prepared its token there."""
        self.contradictions[position] += 1
        self.hits[position] += hit
        self.detail("branches", "hit" if hit else "miss", self.clock.now(), position)

    def decoded(self, start: float, end: float, n_tokens: int) -> None:
        """The target decoded `n_tokens`."""
        self.events.append(Event("target", "decode" if self.steps else "prompt", start, end, n_tokens))

    def waited(self, start: float, end: float) -> None:
        """The target collected candidates, and may have waited for them."""
        self.events.append(Event("target", "wait", start, end, 0))

    def statistics(self) -> Statistics:
        """The statistics so far."""
        return Totals(self).statistics()


class Recent(NamedTuple):
    """What happened of late."""

    rate: float  # tokens/s; less while the target has stalled
    target: float  # share of the time in which it computed
    draft: float


class Totals:
    """Adds up what is recorded, by the last update(), which costs no more as the text gets longer. For one thread."""

    def __init__(self, metrics: Recorder, recent_s: float = 1.0) -> None:
        """`recent_s`: the seconds that recent() is about."""
        self.metrics = metrics
        self._recent_s = recent_s
        self._n_seen = [0] * 3
        self.n_tokens = self._n_first = 0  # of the text, and of its first step
        self._first_s = self.last_s = 0.0  # the ends of the first step and the last
        self.schedule = Schedule.OFF  # of the last step
        self._draft_s = self._draft_end = 0.0  # the time in which the draft computed, and its end
        # (end, tokens, times of both models) of the steps of the last `recent_s`, at least two, and the one before
        self._recent = deque[tuple[float, int, float, float]]()
        self.draft, self.lookup = CandidateTotals(), CandidateTotals()
        self.time_by_activity = defaultdict[str, Activity](Activity)
        self._tokens_by_schedule = Counter[str]()
        self._decodes_by_candidates = Counter[int]()

    def update(self) -> list[Record]:
        """Add what was recorded since the last call, and return it, list by list."""
        log = self.metrics
        lists: list[Sequence[Record]] = [log.events, log.steps, log.details or []]
        seen, self._n_seen = self._n_seen, list(map(len, lists))  # other threads append to them
        events, steps, details = (records[a:b] for records, a, b in zip(lists, seen, self._n_seen, strict=True))
        for record in sorted([*events, *steps], key=lambda record: record.end):
            if isinstance(record, Event):
                self._add_event(record)
            else:
                self._add_step(record)
        return [*events, *steps, *details]

    def _add_event(self, event: Event) -> None:
        activity = self.time_by_activity[event.name]
        activity.n += 1
        activity.n_tokens += event.n
        activity.seconds += event.end - event.start
        if event.lane != "target":  # a decode for the draft's chain and for branches has two events
            self._draft_s += max(0.0, event.end - max(event.start, self._draft_end))
            self._draft_end = event.end

    def _add_step(self, step: StepRecord) -> None:
        if not self._recent:
            self._n_first, self._first_s = step.n_tokens, step.end
        else:  # the first step belongs to the prefill
            self._tokens_by_schedule[step.schedule.value] += step.n_tokens
            if step.source is Origin.DRAFT:
                self._decodes_by_candidates[step.n_candidates] += 1
        self.n_tokens += step.n_tokens
        self.last_s, self.schedule = step.end, step.schedule
        (self.lookup if step.source is Origin.LOOKUP else self.draft).add(step)
        target_s = self.time_by_activity["prompt"].seconds + self.time_by_activity["decode"].seconds
        self._recent.append((step.end, self.n_tokens, target_s, self._draft_s))
        while len(self._recent) > 2 and self._recent[1][0] <= self.last_s - self._recent_s:
            self._recent.popleft()

    @property
    def seconds(self) -> float:
        """Seconds since the first step, without those in which others were written."""
        return self.last_s - self._first_s - self.metrics.paused_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first step."""
        return ratio(self.n_tokens - self._n_first, self.seconds)

    @property
    def hit_rate(self) -> float | None:
        """Share of the target's contradictions of the draft that were prepared."""
        return ratio(self.metrics.hits.total(), self.metrics.contradictions.total())

    def recent(self, now: float = -math.inf) -> Recent | None:
        """What happened in the last seconds until `now` (of the clock); None before the second step."""
        if len(self._recent) < 2:
            return None
        (start, *before), (end, *after) = self._recent[0], self._recent[-1]
        seconds = (now if now - end > max(self._recent_s, end - start) else end) - start
        n_tokens, target_s, draft_s = (last - first for first, last in zip(before, after, strict=True))
        return Recent(n_tokens / seconds, min(1.0, target_s / seconds), min(1.0, draft_s / seconds))

    def statistics(self) -> Statistics:
        """The statistics of the text so far."""
        self.update()
        log, time, lookup = self.metrics, self.time_by_activity, self.lookup
        return Statistics(
            PromptStatistics(log.n_prompt, time["prompt"].seconds, ratio(log.n_prompt, time["prompt"].seconds)),
            GenerationStatistics(
                tokens=self.n_tokens,
                seconds=self.seconds,
                tokens_per_s=self.tokens_per_s,
                time_to_first_token_s=self._first_s - log.started if self._recent else None,
                decodes=time["decode"].n,
                tokens_per_decode=ratio(self.n_tokens - self._n_first, time["decode"].n),
                target_ms_per_decode=time["decode"].mean_ms,
                waited_s=time["wait"].seconds,
                tokens_by_schedule=dict(self._tokens_by_schedule),
                stop=log.stop,
            ),
            self._draft_statistics(),
            None
            if not lookup.verified
            else LookupStatistics(
                lookup.verified,
                lookup.accepted,
                lookup.accepted / lookup.verified,
                lookup.decodes,
                dict(lookup.accepted_by_schedule),
            ),
        )

    def _draft_statistics(self) -> DraftStatistics | None:
        """None if there was no draft."""
        log, time = self.metrics, self.time_by_activity
        drafting = [(event.start, event.end) for event in log.events if event.lane != "target"]
        if not drafting and log.draft_error is None:
            return None
        n_drafted = time["draft"].n + time["catch up"].n + time["branch"].n_tokens
        computing = [(event.start, event.end) for event in log.events if event.name in ("prompt", "decode")]
        return DraftStatistics(
            drafted=n_drafted,
            verified=self.draft.verified,
            accepted=self.draft.accepted,
            accept_rate=ratio(self.draft.accepted, self.draft.verified),
            accept_rate_by_position=self.draft.accept_rate_by_position,
            decodes_by_candidates=_from_0(self._decodes_by_candidates),
            ms_per_token=time["draft"].mean_ms,
            computed_s=overlap(drafting, [(self._first_s, self.last_s)]),
            hidden=ratio(overlap(drafting, computing), self._draft_s),
            unused=ratio(n_drafted - self.draft.accepted, n_drafted) if log.vocabulary != TRANSLATED else None,
            error=log.draft_error,
            vocabulary=log.vocabulary,
            lost_to_translation=log.lost_to_translation,
            branches=BranchStatistics(
                prepared=log.n_prepared,
                tokens=time["branch"].n_tokens,
                contradictions=log.contradictions.total(),
                hits=log.hits.total(),
                hit_rate=self.hit_rate,
                hit_rate_by_position=[ratio(log.hits[i], n) for i, n in enumerate(_from_0(log.contradictions))],
            )
            if log.n_prepared
            else None,
            alternatives=log.alternatives["verified"],
            alternatives_accepted=log.alternatives["accepted"],
        )


def _from_0(counts: Counter[int]) -> list[int]:
    """The counts of 0, 1, … up to the greatest."""
    return [counts[i] for i in range(max(counts, default=-1) + 1)]

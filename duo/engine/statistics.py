"""Records of one text, and its statistics: what a program gets, and what --json writes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from duo.speculation.modes import Schedule
from duo.speculation.types import Origin

Interval = tuple[float, float]

# Why a text ended: GenerationStatistics.stop, Completion.stop_reason.
END_OF_TEXT = "end of text"
LIMIT = "token limit"
STOP_STRING = "stop string"
CONTEXT_FULL = "context full"
INTERRUPTED = "interrupted"
GRAMMAR_END = "the grammar allows nothing more"


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
    source: Origin = Origin.DRAFT  # of the candidates


Record = Event | StepRecord


def overlap(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """Seconds that an interval of both covers."""
    edges = [
        (time, i, change)
        for i, intervals in enumerate((first, second))
        for interval in intervals
        for time, change in zip(interval, (1, -1), strict=True)
    ]
    total, since, depths = 0.0, 0.0, [0, 0]
    for time, i, change in sorted(edges):
        total += time - since if all(depths) else 0.0
        since = time
        depths[i] += change
    return total


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
    tokens_per_decode: float | None  # the mean acceptance length
    target_ms_per_decode: float | None
    waited_s: float  # time that the target waited for the draft
    tokens_by_schedule: dict[str, int]
    stop: str  # why the text ended, such as END_OF_TEXT


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
    alternatives: int = 0  # to candidates, that were verified beside these,
    alternatives_accepted: int = 0  # and that were right; they are in `accepted`, too


@dataclass(frozen=True, slots=True)
class LookupStatistics:
    """Candidates from the text itself, or from a memory of earlier ones."""

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
    lookup: LookupStatistics | None = None  # None: no candidate came from the text itself or a memory

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first step; None for fewer than two steps."""
        return self.generation.tokens_per_s

    @property
    def verified(self) -> int:
        """Candidates of all sources."""
        return sum(source.verified for source in (self.draft, self.lookup) if source is not None)

    @property
    def accepted(self) -> int:
        """Candidates of all sources."""
        return sum(source.accepted for source in (self.draft, self.lookup) if source is not None)


@dataclass(slots=True)
class CandidateTotals:
    """Candidates of one source, while they are counted."""

    verified: int = 0
    accepted: int = 0
    decodes: int = 0  # of the target, that verified some
    accepted_by_schedule: Counter[str] = field(default_factory=Counter)
    _verified_at: Counter[int] = field(default_factory=Counter)  # by position in the batch
    accepted_at: Counter[int] = field(default_factory=Counter)

    def add(self, step: StepRecord) -> None:
        """Add the candidates of a step."""
        if step.n_candidates:
            self.verified += step.n_candidates
            self.accepted += step.n_accepted
            self.decodes += 1
            self.accepted_by_schedule[step.schedule.value] += step.n_accepted
            self._verified_at.update(range(step.n_candidates))
            self.accepted_at.update(range(step.n_accepted))

    @property
    def accept_rate_by_position(self) -> list[float]:
        """Share of the candidates at each position in the batch that were accepted."""
        return [self.accepted_at[i] / n for i, n in enumerate(self._verified_at.values())]


@dataclass(slots=True)
class Activity:
    """The operations of one name."""

    n: int = 0
    n_tokens: int = 0
    seconds: float = 0.0

    @property
    def mean_ms(self) -> float | None:
        """Milliseconds of each."""
        return ratio(1000 * self.seconds, self.n)


def ratio(n: float, of: float) -> float | None:
    """n / of; None if there is nothing to divide by."""
    return n / of if of else None

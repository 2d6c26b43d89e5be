"""What a policy has learned and decided, for reports and --json; times in ms."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from duo.speculation.schedule import OFF, Change, Schedule

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByCondition(Generic[T]):
    """What differs between the schedules sync and off, and async."""

    alone: T
    concurrent: T


@dataclass(frozen=True, slots=True)
class AloneTimes:
    """T(1) of the target alone."""

    this_run: float | None
    earlier_runs: float | None


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """None and empty where nothing is known."""

    schedule: Schedule
    schedules: tuple[Schedule, ...]  # that were possible
    changes: list[Change]
    rate: float
    forecast_tokens_per_s: dict[Schedule, float]
    predicted_tokens_per_s: float | None  # the best rate by what was learned, not corrected by what was measured
    n_branches: int
    acceptance: float
    scored: int  # candidates that it is known from, earlier runs included
    ranks: tuple[float, ...]
    max_gain: float | None
    alone_ms: AloneTimes
    target_ms: ByCondition[dict[int, float]]  # T(n) that were measured in this run
    draft_ms: ByCondition[float | None]
    draft_ms_by_sequences: list[float]  # concurrently, of one token in each of 1 to MAX_BRANCHES + 1 sequences
    latency_ms: float | None
    curve_ms: ByCondition[list[float] | None]  # T(1) to T(n_max + 1), assumed where they were not measured
    measured: ByCondition[list[int]]  # sizes
    pair_ms: float | None

    @property
    def has_draft(self) -> bool:
        """Whether there was a draft to choose."""
        return self.schedules != (OFF,)

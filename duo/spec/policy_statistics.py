"""What a policy has learned and decided, for reports and --json; times in ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from duo.config import MAX_BRANCHES
from duo.spec.pair import PairModel
from duo.spec.schedule import Change, Schedule

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByCondition(Generic[T]):
    """What differs between the schedules sync and off, and async."""

    alone: T
    beside: T


@dataclass(frozen=True, slots=True)
class AloneTimes:
    """T(1) of the target alone."""

    this_run: float | None
    earlier_runs: float | None


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A change of schedule after `tokens` of the text."""

    tokens: int
    schedule: Schedule
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """None and empty where nothing is known."""

    schedule: Schedule
    schedules: tuple[Schedule, ...]  # that were possible
    changes: list[ScheduleChange]
    rate: float
    forecast_tokens_per_s: dict[Schedule, float]
    predicted_tokens_per_s: float | None  # the best rate by what was learned, not corrected by what was measured
    n_branches: int
    acceptance: float
    scored: int  # candidates that it is known from, earlier runs included
    ranks: tuple[float, ...]
    most_gain: float | None
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
        return self.schedules != (Schedule.OFF,)


def policy_statistics(
    pair: PairModel,
    schedule: Schedule,
    schedules: Sequence[Schedule],
    changes: Sequence[Change],
    rate: float,
    forecasts: Mapping[Schedule, float],
    predicted: float | None,
    n_branches: int,
) -> PolicyStatistics:
    """The statistics of a policy that has learned `pair`, and decided the rest."""
    both, sizes = ByCondition(pair.alone, pair.beside), range(1, pair.n_max + 2)
    curves = [[1000 * s for s in costs.curve(pair.n_max + 1)] for costs in (both.alone, both.beside)]
    return PolicyStatistics(
        schedule=schedule,
        schedules=tuple(schedules),
        changes=[ScheduleChange(change.n_tokens, change.schedule, change.reason) for change in changes],
        rate=rate,
        forecast_tokens_per_s=dict(forecasts),
        predicted_tokens_per_s=predicted,
        n_branches=n_branches,
        acceptance=pair.calibration.mean,
        scored=pair.calibration.n_scored,
        ranks=tuple(pair.calibration.ranks),
        most_gain=pair.max_gain(),
        alone_ms=AloneTimes(
            1000 * both.alone.alone_here_s() or None if pair.is_steady else None,
            1000 * both.alone.target(1).before or None,
        ),
        target_ms=ByCondition(both.alone.target_ms(), both.beside.target_ms()),
        draft_ms=ByCondition(1000 * both.alone.draft_s or None, 1000 * both.beside.draft_s or None),
        draft_ms_by_sequences=[1000 * both.beside.draft_time(0.0, n) for n in range(1, MAX_BRANCHES + 2)]
        if both.beside.knows_branches and both.beside.draft_s
        else [],
        latency_ms=1000 * pair.latency_s or None,
        curve_ms=ByCondition(*(curve if curve[0] else None for curve in curves)),
        measured=ByCondition(*([n for n in sizes if costs.target(n).n] for costs in (both.alone, both.beside))),
        pair_ms=1000 * both.alone.pair_time() if both.alone.knows_pair else None,
    )

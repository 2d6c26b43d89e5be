"""What a controller has learned and decided, for reports and --json; times in ms."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from duo.config import MAX_BRANCHES
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import ALL, OFF, Change, Schedule
from duo.speculation.target_costs import BatchTimes

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
class ControllerReport:
    """None and empty where nothing is known. What is about a draft is about the one in use, or the first one."""

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


def report(controller: Controller) -> ControllerReport:
    """What `controller` has learned and decided."""
    drafts = list(controller.known.values())
    draft = controller.draft or (drafts[0] if drafts else None)
    alone, schedules = controller.target.alone, {each for known in drafts for each in known.schedules} or {OFF}
    if draft is None:
        draft = DraftEstimates(controller.target, controller.n_most, 0, (OFF,), name="")
    costs, both = draft.costs, (alone, draft.beside if draft.name else BatchTimes())
    found = controller.prospects.forecasts() if draft.was_scored else {}
    max_rate, own = controller.prospects.max_rate(), controller.prospects.rates()
    knows_branches = costs.concurrent.token_s and (costs.alone.by_sequences or costs.concurrent.by_sequences)
    curves = [[1000 * seconds for seconds in each.curve(draft.n_max + 1)] for each in both]
    times = [sorted(each.times.items()) for each in both]
    rates: dict[Schedule, float] = {}
    for mode, rate in own.items():
        rates[mode.schedule] = max(rates.get(mode.schedule, 0.0), min(rate, max_rate))
    return ControllerReport(
        schedule=controller.schedule,
        schedules=tuple(each for each in ALL if each in schedules),
        changes=list(controller.chooser.changes),
        rate=controller.rate,
        forecast_tokens_per_s=rates,
        predicted_tokens_per_s=max((found[m].rate for m in controller.chooser.allowed if m in found), default=None),
        n_branches=draft.lookahead().n_branches,
        acceptance=draft.acceptance.mean,
        scored=draft.acceptance.n_scored,
        ranks=draft.acceptance.ranks,
        max_gain=controller.prospects.max_gain(draft) if drafts else None,
        alone_ms=AloneTimes(
            controller.is_steady * 1000 * alone.one_here_s() or None, 1000 * alone.time(1).before or None
        ),
        target_ms=ByCondition(*({n: 1000 * time.value for n, time in each if time.is_fresh} for each in times)),
        draft_ms=ByCondition(1000 * costs.alone.token_s or None, 1000 * costs.concurrent.token_s or None),
        draft_ms_by_sequences=[
            1000 * costs.concurrent.seconds(0.0, n) for n in range(1, MAX_BRANCHES + 2) if knows_branches
        ],
        latency_ms=1000 * costs.latency_s or None,
        curve_ms=ByCondition(*(curve if curve[0] else None for curve in curves)),
        measured=ByCondition(*([n for n, time in each if time.n and n <= draft.n_max + 1] for each in times)),
        pair_ms=1000 * costs.alone.pair_s() if costs.alone.pair else None,
    )

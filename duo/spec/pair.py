"""PairModel: what is known about a target and its draft, and the rate of each schedule that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from duo.spec import forecast
from duo.spec.constants import DEFAULT, PolicyConfig
from duo.spec.costs import Calibration, CostModel, Mean, Time, between, duration
from duo.spec.forecast import SURE, Forecast
from duo.spec.schedule import Outlook, Schedule

# Smallest factor by which a forecast is corrected: the times that a remote draft reports may be false.
_LEAST_BIAS, _LEAST_BIAS_REMOTE = 0.5, 0.02
_MOST_BIAS = 2.0
_MAX_BIAS = 1e9  # beyond, a profile is damaged


class PairModel:
    """T(n) and t_d for each condition, a(c) for each mode of sampling, and how accurate forecasts have been.

    It outlives a generation, and is stored in a profile between runs.
    """

    def __init__(
        self, n_max: int, n_ahead: int, *, remote: bool = False, apart: bool = False, config: PolicyConfig = DEFAULT
    ) -> None:
        """At most `n_max` candidates in a batch and `n_ahead` drafted tokens awaiting verification."""
        self.config = config
        self.n_max = n_max
        self.n_ahead = n_ahead
        self.alone = CostModel(config=config)  # schedules sync and off
        self.beside = CostModel(self.alone, 1.0 if apart else config.slower, config)  # schedule async
        self.calibration = Calibration()  # of the current mode of sampling
        self._mode = ""
        self._calibrations: dict[str, Calibration] = {}  # of the other modes
        self._bias = {schedule: Mean(value=1.0, n=4) for schedule in Schedule}
        self._least_bias = _LEAST_BIAS_REMOTE if remote else _LEAST_BIAS
        self._read = Time()  # per token of a long batch of the draft
        self._latency = Time()  # of a remote draft

    @property
    def latency_s(self) -> float:
        """Round trip to a remote draft, in seconds, without the time to draft."""
        return self._latency.value

    @property
    def read_s(self) -> float:
        """Seconds per token when the draft decodes many at once; an estimate until that was measured."""
        return self._read.value or self.config.read * self.alone.draft_s

    def forecasts(self, acceptance: float | None = None, doubt: float = 0.0) -> dict[Schedule, Forecast]:
        """What each schedule can reach at `acceptance` (default: the current mean); empty while costs are unknown."""
        n, acceptance = self.n_max + 1, self.calibration.mean if acceptance is None else acceptance
        alone, beside = self.alone.curve(n, doubt), self.beside.curve(n, doubt)
        if not alone[0] or (self.n_max and not self.beside.draft_s):
            return {}
        found = {Schedule.OFF: forecast.alone(alone)}
        if self.n_max:
            found[Schedule.SYNC] = forecast.taking_turns(alone, self.alone.draft_time(doubt), acceptance)
            found[Schedule.ASYNC] = forecast.overlapped(
                beside, self.beside.draft_time(doubt), acceptance, self.n_ahead, self.latency_s
            )
        return found

    def most_gain(self) -> float | None:
        """The best rate with an excellent draft that costs the same, over the target alone; None while unknown."""
        found = self.forecasts(self.config.excellent)
        return max(forecast.rate for forecast in found.values()) / found[Schedule.OFF].rate if found else None

    def outlooks(self, found: Mapping[Schedule, Forecast] | None = None) -> dict[Schedule, Outlook]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were.

        Empty while costs are unknown.
        """
        if not (found := self.forecasts() if found is None else found):
            return {}
        mean, sd = self.calibration.mean, self.calibration.sd
        low, high = self.forecasts(max(0.0, mean - sd), 1.0), self.forecasts(min(SURE, mean + sd), -1.0)
        # A schedule that verifies nothing is the target alone.
        bias = {s: self._bias[s if each.n_verify else Schedule.OFF].value for s, each in found.items()}
        return {s: Outlook(found[s].rate * bias[s], low[s].rate * bias[s], high[s].rate * bias[s]) for s in found}

    def rates(self) -> dict[Schedule, float]:
        """The rates of the outlooks."""
        return {schedule: outlook.rate for schedule, outlook in self.outlooks().items()}

    def most_rate(self) -> float:
        """The rate in tokens/s that even a draft which is always right would not exceed; infinite while unknown."""
        n, models = self.n_max + 1, (self.alone, self.beside)
        known = [(costs.curve(n), costs.draft_s) for costs in models if costs.target_s(1)]
        return max((forecast.limit(curve, s or math.inf, 1.0) for curve, s in known), default=math.inf)

    def learn_latency(self, seconds: float) -> None:
        """A remote draft answered a new epoch after `seconds`, not counting the time it took to draft the token."""
        self._latency.add(max(seconds, 1e-6))

    def _learn_bias(self, schedule: Schedule, ratio: float) -> None:
        """`ratio`: measured over forecast rate."""
        self._bias[schedule].add(self._limited(ratio))

    def _limited(self, bias: float) -> float:
        return min(max(bias, self._least_bias), _MOST_BIAS)

    def _use_mode(self, mode: str) -> None:
        """Switch to the calibration for another mode of sampling."""
        if mode != self._mode:
            self._calibrations[self._mode] = self.calibration
            self.calibration = self._calibrations.pop(mode, Calibration())
            self._mode = mode

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON types."""
        calibrations = {**self._calibrations, self._mode: self.calibration}
        return {
            "alone": self.alone.state(),
            "beside": self.beside.state(),
            "acceptance": {mode: found.state() for mode, found in calibrations.items() if mode},
            "read_s": self._read.value,
            "latency_s": self._latency.value,
            "bias": {schedule.value: bias.value for schedule, bias in self._bias.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        self.alone.restore(state["alone"])
        self.beside.restore(state["beside"])
        for mode, found in state["acceptance"].items():
            self._calibrations[mode] = Calibration()
            self._calibrations[mode].restore(found)
        if self._mode in self._calibrations:
            self.calibration = self._calibrations.pop(self._mode)
        if state["read_s"]:
            self._read = Time(duration(state["read_s"]), DEFAULT.kept)
        if state["latency_s"]:
            self._latency = Time(duration(state["latency_s"]), DEFAULT.kept)
        for schedule in Schedule:
            bias = between(state["bias"][schedule.value], 0, _MAX_BIAS)
            self._bias[schedule] = Mean(value=self._limited(bias), n=4)

"""PairModel: what is known about a target and its draft, and the rate of each schedule that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from duo.config import MAX_THREADS
from duo.spec import forecast
from duo.spec.calibration import Calibration
from duo.spec.constants import DEFAULT, PolicyConfig
from duo.spec.costs import CostModel
from duo.spec.forecast import SURE, BranchModel, Forecast
from duo.spec.means import Mean, Time, between, duration
from duo.spec.policy_state import PolicyState
from duo.spec.schedule import RateEstimate, Schedule

# Smallest factor by which a forecast is corrected: the times that a remote draft reports may be false.
_MIN_BIAS, _MIN_BIAS_REMOTE = 0.5, 0.02
_MAX_BIAS = 2.0
_AS_FAST = (1.0, 1.0, 1.0)
_BOTH = math.sqrt(0.5)  # standard deviations of costs and of acceptance, which together are about one
_NUMBERS = (0, 1, 2, 4, 8)  # of branches that are compared
# Changes after which they are compared again: of the acceptance, of the shares of ranks, and relative ones of times.
_TOLERANCE = (0.05, *len(DEFAULT.ranks) * (0.1,), *(2 + len(_NUMBERS)) * (0.05,))


class PairModel:
    """T(n) and t_d for each condition, a(c) for each mode of sampling, and how accurate forecasts have been.

    It outlives a generation, and is stored in a profile between runs.
    """

    def __init__(
        self,
        n_max: int,
        n_ahead: int,
        *,
        remote: bool = False,
        apart: bool = False,
        branches: int | None = 0,
        aborts: bool = True,
        config: PolicyConfig = DEFAULT,
    ) -> None:
        """At most `n_max` candidates in a batch and `n_ahead` drafted tokens awaiting verification.

        `branches`: how many outcomes the draft prepares in schedule async; None: as many as pay. `aborts`: whether the
        draft's device can abort a decode whose result is no longer wanted.
        """
        self.config = config
        self.n_max = n_max
        self.n_ahead = n_ahead
        self.branches = branches
        self._n_branches = 0  # now, in schedule async
        self._compared: tuple[float, ...] = ()  # what this number was chosen for
        self.aborts = aborts
        self._apart = apart
        self._costs: dict[int, tuple[CostModel, CostModel]] = {}  # alone and beside, by free cores; 0: all
        PairModel.use_cores(self, 0)
        self.is_steady = True  # whether these have been the free cores all through the text
        self.calibration = Calibration()  # of the current mode of sampling
        self._mode = ""
        self._calibrations: dict[str, Calibration] = {}  # of the other modes
        self._bias = {schedule: Mean(value=1.0, n=4) for schedule in Schedule}
        self._min_bias = _MIN_BIAS_REMOTE if remote else _MIN_BIAS
        self._read = Time()  # per token of a long batch of the draft
        self._latency = Time()  # of a remote draft

    def use_cores(self, n_cores: int) -> None:
        """From now on, the times that are learned and used are those with `n_cores` cores free for both models.

        0: all of them. `alone` are those of schedules sync and off, `beside` those of async.
        """
        if n_cores not in self._costs:
            alone, beside, slower = CostModel(self.config), CostModel(self.config), self.config.slower
            alone.relatives, beside.relatives = [(beside, _AS_FAST)], [(alone, _AS_FAST if self._apart else slower)]
            for earlier in self._costs.values():
                for mine, theirs in zip((alone, beside), earlier, strict=True):
                    mine.relatives.append((theirs, slower))
                    theirs.relatives.append((mine, _AS_FAST))
                beside.relatives.append((earlier[0], slower))
                earlier[1].relatives.append((alone, slower))
            self._costs[n_cores] = alone, beside
        self.alone, self.beside = self._costs[n_cores]
        self.alone.forget_curves()

    @property
    def latency_s(self) -> float:
        """Round trip to a remote draft, in seconds, without the time to draft."""
        return self._latency.value

    @property
    def read_s(self) -> float:
        """Seconds per token when the draft decodes many at once; an estimate until that was measured."""
        return self._read.value or self.config.read * self.alone.draft_s

    def forecasts(
        self, acceptance: float | None = None, doubt: float = 0.0, *, constant: bool = False
    ) -> dict[Schedule, Forecast]:
        """What each schedule can reach at `acceptance` (default: the current mean); empty while costs are unknown.

        `constant`: the draft's confidence says nothing about a candidate.
        """
        if not self.alone.target_s(1) or (self.n_max and not (self.beside.draft_s and self.beside.target_s(1))):
            return {}
        acceptance = self.calibration.mean if acceptance is None else acceptance
        found = {Schedule.OFF: Forecast(1 / self.alone.target_s(1, doubt))}
        if self.n_max:
            chances = [(1.0, acceptance)] if constant else self.calibration.chances(acceptance)
            found[Schedule.SYNC] = self._in_turns(chances, doubt)
            beside = self.beside.curve(self.n_max + 1, doubt)
            found[Schedule.ASYNC] = self._concurrent(beside, acceptance, doubt, self._n_branches)
        return found

    def _in_turns(self, chances: Sequence[tuple[float, float]], doubt: float) -> Forecast:
        """The forecast of schedule sync."""
        curve, draft_s = self.alone.curve(self.n_max + 1, doubt), self.alone.draft_time(doubt)
        return forecast.taking_turns(curve, draft_s, chances, self.alone.pair_time(doubt), self.latency_s)

    def _concurrent(self, target_s: Sequence[float], acceptance: float, doubt: float, n_branches: int) -> Forecast:
        """The forecast of schedule async with this many branches."""
        draft_s = [self.beside.draft_time(doubt, n) for n in range(1, n_branches + 2)]
        latency_s = self.latency_s if self.aborts else self.latency_s + draft_s[-1] / 2
        branches = BranchModel(n_branches, draft_s, self.calibration.ranks) if n_branches else None
        return forecast.overlapped(target_s, draft_s[0], acceptance, self.n_ahead, latency_s, branches)

    def choose_branches(self, *, allowed: bool) -> None:
        """Choose how many branches to have: the fewest that are almost the best, none if the best gains too little.

        That takes several forecasts, so they are compared again only after something that matters has changed.
        """
        is_known = self.beside.draft_s and self.beside.target_s(1)
        if not allowed or not self.n_max or self.branches is not None or not is_known:
            self._n_branches, self._compared = self.branches or 0 if allowed else 0, ()
            return
        curve, acceptance = self.beside.curve(self.n_max + 1), self.calibration.mean
        shares = acceptance, *self.calibration.ranks
        times = curve[0], curve[-1], *(self.beside.draft_time(0.0, n + 1) for n in _NUMBERS)
        if self._compared and all(
            abs(now - then) <= limit
            for now, then, limit in zip((*shares, *map(math.log, times)), self._compared, _TOLERANCE, strict=True)
        ):
            return
        self._compared = (*shares, *map(math.log, times))
        rates = {n: self._concurrent(curve, acceptance, 0.0, n).rate for n in _NUMBERS}
        least, best = self.config.least_gain, max(rates.values())
        pays = best >= (1 + least) * rates[0]
        self._n_branches = next(n for n in _NUMBERS if rates[n] >= (1 - least / 4) * best) if pays else 0

    def max_gain(self) -> float | None:
        """The best rate with an excellent draft, if costs are as low as they may be, over the target alone.

        None while unknown.
        """
        found = self.forecasts(self.config.excellent, -1.0)
        return max(forecast.rate for forecast in found.values()) / found[Schedule.OFF].rate if found else None

    def estimates(self, found: Mapping[Schedule, Forecast] | None = None) -> dict[Schedule, RateEstimate]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were.

        Empty while costs are unknown. What doubt changes in turns is that of the best constant number of candidates.
        """
        if not (found := self.forecasts() if found is None else found):
            return {}
        mean, sd = self.calibration.mean, _BOTH * self.calibration.sd
        in_turns = self._in_turns([(1.0, mean)], 0.0)
        constant = in_turns.n_verify > 0  # otherwise drafting pays only where the draft is sure, if at all
        expected = {**found, Schedule.SYNC: in_turns} if constant else found
        low = self.forecasts(max(0.0, mean - sd), _BOTH, constant=constant)
        high = self.forecasts(min(SURE, mean + sd), -_BOTH, constant=constant)
        ratios = {
            s: (min(1.0, low[s].rate / expected[s].rate), max(1.0, high[s].rate / expected[s].rate)) for s in found
        }
        return {
            s: RateEstimate(rate, ratios[s][0] * rate, ratios[s][1] * rate) for s, rate in self.rates(found).items()
        }

    def rates(self, found: Mapping[Schedule, Forecast] | None = None) -> dict[Schedule, float]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were."""
        found = self.forecasts() if found is None else found
        # A schedule that verifies nothing is the target alone.
        return {s: each.rate * self._bias[s if each.n_verify else Schedule.OFF].value for s, each in found.items()}

    def max_rate(self) -> float:
        """The rate in tokens/s that even a draft which is always right would not exceed; infinite while unknown."""
        n, models = self.n_max + 1, (self.alone, self.beside)
        known = [(costs.curve(n), costs.draft_s) for costs in models if costs.target_s(1)]
        return max((forecast.limit(curve, s or math.inf, 1.0) for curve, s in known), default=math.inf)

    def learn_warmup(self, n_threads: int, seconds: float) -> None:
        """The draft decoded one token with `n_threads` while it was loaded."""
        if not self.knows_draft(n_threads):
            self.alone.add_draft(seconds, n_threads)

    def learn_branches(self, n_sequences: int, ratio: float) -> None:
        """While it was loaded, a token in each of `n_sequences` took the draft `ratio` times as long as one token."""
        if self.alone.draft_s and not self.knows_draft(1, n_sequences):
            self.alone.add_draft(ratio * self.alone.draft_s, n_sequences=n_sequences)

    def knows_draft(self, n_threads: int, n_sequences: int = 1) -> bool:
        """Whether the draft's time with `n_threads` is known, from this run or an earlier one."""
        known = self.alone.knows_draft(n_threads, n_sequences)
        return known or (n_sequences > 1 and self.beside.knows_draft(n_threads, n_sequences))

    def learn_ranks(self, ranks: Iterable[int]) -> None:
        """The target's token, where a drafted one was wrong, was its alternative of these ranks; -1: none of them."""
        for rank in ranks:
            self.calibration.add_rank(rank)

    def learn_latency(self, seconds: float) -> None:
        """A remote draft answered a new epoch after `seconds`, not counting the time it took to draft the token."""
        self._latency.add(max(seconds, 1e-6))

    def _learn_bias(self, schedule: Schedule, ratio: float) -> None:
        """`ratio`: measured over forecast rate."""
        self._bias[schedule].add(self._limited(ratio))

    def _limited(self, bias: float) -> float:
        return min(max(bias, self._min_bias), _MAX_BIAS)

    def _use_mode(self, mode: str) -> None:
        """Switch to the calibration for another mode of sampling."""
        if mode != self._mode:
            self._calibrations[self._mode] = self.calibration
            self.calibration = self._calibrations.pop(mode, Calibration())
            self._mode = mode

    def state(self) -> PolicyState:
        """What was learned, as JSON types."""
        calibrations = {**self._calibrations, self._mode: self.calibration}
        return {
            "costs": {str(n): [costs.state() for costs in both] for n, both in self._costs.items()},
            "acceptance": {mode: found.state() for mode, found in calibrations.items() if mode and found.n_scored},
            "read_s": self._read.value,
            "latency_s": self._latency.value,
            "bias": {schedule.value: bias.value for schedule, bias in self._bias.items()},
        }

    def restore(self, state: PolicyState) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        now = self.alone
        for n_cores, both in state["costs"].items():
            if not 0 <= int(n_cores) <= MAX_THREADS:
                raise ValueError("not a number of cores")
            PairModel.use_cores(self, int(n_cores))
            for costs, found in zip((self.alone, self.beside), both, strict=True):
                costs.restore(found)
        PairModel.use_cores(self, next(n for n, (alone, _) in self._costs.items() if alone is now))
        for mode, scores in state["acceptance"].items():
            self._calibrations[mode] = Calibration()
            self._calibrations[mode].restore(scores)
        if self._mode in self._calibrations:
            self.calibration = self._calibrations.pop(self._mode)
        if state["read_s"]:
            self._read = Time(duration(state["read_s"]), DEFAULT.kept)
        if state["latency_s"]:
            self._latency = Time(duration(state["latency_s"]), DEFAULT.kept)
        for schedule in Schedule:
            bias = between(state["bias"][schedule.value], 0, 1e9)
            self._bias[schedule] = Mean(value=self._limited(bias), n=4)

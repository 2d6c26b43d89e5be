"""PairModel: what is known about a target and its draft, and the rate of each schedule that follows from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from duo.config import MAX_THREADS
from duo.speculation.acceptance import Acceptance
from duo.speculation.constants import DEFAULT
from duo.speculation.costs import CostModel
from duo.speculation.estimators import Mean, Time
from duo.speculation.forecast import SURE, Forecast, limit, overlapped, taking_turns
from duo.speculation.policy_state import PolicyState, between, duration
from duo.speculation.schedule import ALL, ASYNC, OFF, SYNC, RateEstimate, Schedule

# Smallest factor by which a forecast is corrected: the times that a remote draft reports may be false.
_MIN_BIAS, _MIN_BIAS_REMOTE = 0.5, 0.02
_MAX_BIAS = 2.0
_AS_FAST = (1.0, 1.0, 1.0)
_BOTH = math.sqrt(0.5)  # standard deviations of costs and of acceptance, which together are about one
_NUMBERS = (0, 1, 2, 4, 8)  # of branches that are compared
_SURELY = 50  # measurements


@dataclass(eq=False)
class PairModel:
    """What a profile keeps: T(n), t_d in each condition, a(c) in each mode of sampling, how accurate forecasts were."""

    n_max: int  # candidates in a batch
    n_ahead: int  # drafted tokens awaiting verification
    schedules: Sequence[Schedule] = ALL  # to choose among
    draft_threads: Sequence[int] = (1,)  # to choose among, for schedule sync
    _: KW_ONLY
    remote: bool = False  # the draft is on another machine: no schedule sync, and no branches
    separate_devices: bool = False  # the draft costs the target nothing while both compute: async is the first schedule
    branches: int | None = 0  # outcomes that the draft prepares in schedule async; None: as many as pay
    aborts: bool = True  # whether the draft's device can abort a decode whose result is no longer wanted
    in_turns: bool = False  # the draft is a head on the target's device: no schedule async
    n_depths: int = 1  # of a head's candidates: see Acceptance
    n_most: int = 0  # candidates of other sources in a batch; at least n_max

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        if self.remote:
            self.separate_devices, self.branches = True, 0
            self.schedules = tuple(each for each in self.schedules if each is not SYNC) or (ASYNC,)
        if self.in_turns:
            self.schedules = tuple(each for each in self.schedules if each is not ASYNC) or (SYNC,)
        self.schedules = tuple(self.schedules) if self.n_max else (OFF,)
        self.n_most = max(self.n_max, self.n_most)
        self._n_branches = 0  # now, in schedule async
        self._compared: list[int] = []  # what this number was chosen for
        self._near: dict[int, Sequence[int]] = {}  # by number of branches: of the last forecast of schedule async
        self._costs: dict[int, tuple[CostModel, CostModel]] = {}  # alone and concurrent, by free cores; 0: all
        self.alone, self.concurrent = self._on_cores(0)  # of the schedules sync and off; of async
        self.is_steady = True  # whether these have been the free cores all through the text
        self._mode = ""
        self.calibration = Acceptance(self.n_depths)  # of this mode of sampling
        self._calibrations = {"": self.calibration}  # of all modes
        self._bias = {schedule: Mean(value=1.0, n=4) for schedule in Schedule}
        self._read = Time()  # per token of a long batch of the draft
        self._latency = Time()  # of a remote draft
        self._looked_up = Mean()  # tokens that the lookup finds between two other steps, which the draft has to read
        self._n_fruitless = 0  # texts in succession whose first probe did not lead to drafting
        self._n_unscored = 0  # tokens since a candidate was last scored, those of earlier texts included

    def _on_cores(self, n_cores: int) -> tuple[CostModel, CostModel]:
        if n_cores not in self._costs:
            alone, both, slower = CostModel(), CostModel(), DEFAULT.slower
            alone.relatives = [(both, _AS_FAST)]
            both.relatives = [(alone, _AS_FAST if self.separate_devices else slower)]
            for earlier_alone, earlier_both in self._costs.values():
                alone.relatives += [(earlier_alone, slower)]
                both.relatives += [(earlier_both, slower), (earlier_alone, slower)]
                earlier_alone.relatives += [(alone, _AS_FAST)]
                earlier_both.relatives += [(both, _AS_FAST), (alone, slower)]
            self._costs[n_cores] = alone, both
        return self._costs[n_cores]

    @property
    def latency_s(self) -> float:
        """Round trip to a remote draft, in seconds, without the time to draft."""
        return self._latency.value

    @property
    def read_s(self) -> float:
        """Seconds per token when the draft decodes many at once; an estimate until that was measured."""
        return self._read.value or DEFAULT.read * self.alone.draft_s

    def forecasts(
        self, acceptance: float | None = None, doubt: float = 0.0, *, constant: bool = False
    ) -> dict[Schedule, Forecast]:
        """What each schedule can reach, at the mean `acceptance` unless it is given; empty while costs are unknown.

        `constant`: the draft's confidence says nothing about a candidate.
        """
        if not self.alone.target_s(1) or (self.n_max and not self._knows_concurrent):
            return {}
        acceptance = self.calibration.mean if acceptance is None else acceptance
        found = {OFF: Forecast(1 / self.alone.target_s(1, doubt))}
        if self.n_max:
            chances = [[(1.0, acceptance)]] if constant else self.calibration.by_depth(acceptance)
            curve, draft_s = self.alone.curve(self.n_max + 1, doubt), self.alone.draft_time(doubt)
            round_s, pair_s = self.latency_s + self._looked_up.value * self.read_s, self.alone.pair_time(doubt)
            if self.n_depths > 1:  # a head reads again what was accepted
                round_s, pair_s = round_s + pair_s - draft_s, draft_s
            found[SYNC] = taking_turns(curve, draft_s, chances, pair_s, round_s)
            if self.n_depths > 1:  # running ahead, it mostly builds on rows of its own
                deep = chances[1:] or chances
                acceptance = math.prod(sum(map(math.prod, group)) for group in deep) ** (1 / len(deep))
            if not self.in_turns:
                found[ASYNC] = self._overlapped(acceptance, doubt, self._n_branches)
        return found

    @property
    def _knows_concurrent(self) -> bool:
        return bool(self.concurrent.draft_s and self.concurrent.target_s(1))

    def _overlapped(self, acceptance: float, doubt: float, n_branches: int) -> Forecast:
        target_s = self.concurrent.curve(self.n_max + 1, doubt)
        draft_s = [self.concurrent.draft_time(doubt, n) for n in range(1, n_branches + 2)]
        latency_s = self.latency_s if self.aborts else self.latency_s + draft_s[-1] / 2
        ranks, near = self.calibration.ranks, self._near.get(n_branches, ())
        found = overlapped(target_s, draft_s, acceptance, self.n_ahead, latency_s, ranks, near)
        self._near[n_branches] = found.batches
        return found

    def choose_branches(self, *, allowed: bool) -> None:
        """Choose the fewest branches that are almost the best; again only after a change of about a tenth."""
        if not allowed or not self.n_max or self.branches is not None or not self._knows_concurrent:
            self._n_branches, self._compared = self.branches or 0 if allowed else 0, []
            return
        costs, acceptance = self.concurrent, self.calibration.mean
        curve = costs.curve(self.n_max + 1)
        times = curve[0], curve[-1], *(costs.draft_time(0.0, n + 1) for n in _NUMBERS)
        found = [round(10 * value) for value in (acceptance, *self.calibration.ranks, *map(math.log, times))]
        if found == self._compared:
            return
        self._compared = found
        rates = {n: self._overlapped(acceptance, 0.0, n).rate for n in _NUMBERS}
        least, best = DEFAULT.least_gain, max(rates.values())
        pays = best >= (1 + least) * rates[0]
        self._n_branches = next(n for n in _NUMBERS if rates[n] >= (1 - least / 4) * best) if pays else 0

    def max_gain(self) -> float | None:
        """The best rate with an excellent draft and the lowest costs, over the target alone; None while unknown."""
        found = self.forecasts(DEFAULT.excellent, -1.0)
        return max(forecast.rate for forecast in found.values()) / found[OFF].rate if found else None

    def estimates(self, found: Mapping[Schedule, Forecast]) -> dict[Schedule, RateEstimate]:
        """What rates() says about these forecasts, and how uncertain it is."""
        mean, sd = self.calibration.mean, _BOTH * self.calibration.sd
        low, high = self.forecasts(max(0.0, mean - sd), _BOTH), self.forecasts(min(SURE, mean + sd), -_BOTH)
        estimates = {}
        for s, rate in self.rates(found).items():
            worse, better = min(1.0, low[s].rate / found[s].rate), max(1.0, high[s].rate / found[s].rate)
            estimates[s] = RateEstimate(rate, worse * rate, better * rate)
        return estimates

    def rates(self, found: Mapping[Schedule, Forecast] | None = None) -> dict[Schedule, float]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were."""
        found = self.forecasts() if found is None else found
        # A schedule that verifies nothing is the target alone.
        return {s: each.rate * self._bias[s if each.n_verify else OFF].value for s, each in found.items()}

    def max_rate(self) -> float:
        """The rate in tokens/s that even a draft which is always right would not exceed; infinite while unknown."""
        known = [costs for costs in (self.alone, self.concurrent) if costs.target_s(1)]
        limits = (limit(costs.curve(self.n_max + 1), costs.draft_s or math.inf, 1.0) for costs in known)
        return max(limits, default=math.inf)

    def learn_machine(self, machine: "Machine") -> None:
        """Learn all times of `machine`, as often as it takes to leave no doubt."""
        for _ in range(_SURELY):
            for costs, target_s, draft_s in (
                (self.alone, machine.target_s, machine.draft_s),
                (self.concurrent, machine.concurrent_target_s, machine.concurrent_draft_s),
            ):
                costs.add_draft(draft_s)
                for n, seconds in enumerate(target_s, 1):
                    costs.add_target(n, seconds)
            if machine.pair_s:
                self.alone.add_pair(machine.pair_s)
            for n, seconds in enumerate(machine.branch_s[1:], 2):
                self.concurrent.add_draft(seconds, n_sequences=n)
        if machine.latency_s:
            self.learn_latency(machine.latency_s)

    def learn_target_warmup(self, seconds: float) -> None:
        """The target decoded its first tokens in so many seconds."""
        self._costs[0][0].warm_s = seconds
        self._forget_jumps()

    def _forget_jumps(self) -> None:
        for costs in (costs for both in self._costs.values() for costs in both):
            costs.forget_jumps()
        times = (Time() if self.alone.is_jump(time.value) else time for time in (self._read, self._latency))
        self._read, self._latency = times

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
        if n_sequences == 1:
            return n_threads in self.alone.draft_times
        return n_sequences in {*self.alone.branch_times, *self.concurrent.branch_times}

    def learn_latency(self, seconds: float) -> None:
        """A remote draft answered a new epoch after `seconds`, not counting the time it took to draft the token."""
        self._latency.add(max(seconds, 1e-6))

    def _limited(self, bias: float) -> float:
        return min(max(bias, _MIN_BIAS_REMOTE if self.remote else _MIN_BIAS), _MAX_BIAS)

    def _use_mode(self, mode: str) -> None:
        """Switch to the calibration for a mode of sampling."""
        self._mode = mode
        self.calibration = self._calibrations.setdefault(mode, Acceptance(self.n_depths))

    def state(self) -> PolicyState:
        """What was learned, as JSON types."""
        return {
            "costs": {str(n): [costs.state() for costs in both] for n, both in self._costs.items()},
            "acceptance": {
                mode: found.state() for mode, found in self._calibrations.items() if mode and found.n_scored
            },
            "read_s": self._read.value,
            "latency_s": self._latency.value,
            "bias": {schedule.value: bias.value for schedule, bias in self._bias.items()},
            "probes": [self._n_fruitless, self._n_unscored],
            "looked_up": self._looked_up.value,
        }

    def restore(self, state: PolicyState) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for n_cores, both in state["costs"].items():
            on_cores = self._on_cores(int(between(int(n_cores), 0, MAX_THREADS)))
            for costs, found in zip(on_cores, both, strict=True):
                costs.restore(found)
        for mode, scores in state["acceptance"].items():
            self._calibrations[mode] = Acceptance(self.n_depths)
            self._calibrations[mode].restore(scores)
        self._use_mode(self._mode)
        if state["read_s"]:
            self._read = Time(duration(state["read_s"]))
        if state["latency_s"]:
            self._latency = Time(duration(state["latency_s"]))
        self._forget_jumps()
        for schedule in Schedule:
            bias = between(state["bias"][schedule.value], 0, 1e9)
            self._bias[schedule] = Mean(value=self._limited(bias), n=4)
        self._looked_up = Mean(value=between(state.get("looked_up", 0.0), 0, 1e9), n=DEFAULT.kept_scores)
        self._n_fruitless, self._n_unscored = (int(between(n, 0, 1e9)) for n in state.get("probes", (0, 0)))

    def restore_kept(self, state: Any) -> bool:
        """restore() from a file; False, and nothing is restored, if `state` is damaged."""
        try:
            PairModel(self.n_max, self.n_ahead, n_depths=self.n_depths).restore(state)
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self.restore(state)
        return True


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of decodes on some hardware: `target_s[i]` of i+1 tokens; `concurrent_`: while the other one decodes."""

    target_s: Sequence[float]
    draft_s: float
    concurrent_target_s: Sequence[float]
    concurrent_draft_s: float
    read_s: float = 0.0  # per token of a long batch of the draft; 0: no probes
    pair_s: float = 0.0  # the draft's time for two tokens in one decode; 0: draft_s and read_s
    noise: float = 0.0  # standard deviation of the logarithm of a measured time
    spikes: float = 0.0  # share of the measurements that are several times too long
    # Of the draft concurrently, for 1, 2, … sequences; empty: as much as the same tokens one after the other.
    branch_s: Sequence[float] = ()
    latency_s: float = 0.0  # round trip to the draft
    aborts: bool = True  # whether the draft's device can abort a decode

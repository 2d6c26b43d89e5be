"""T(n): what the target's decodes cost, learned while running. One table per loaded target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypedDict

from duo.config import MAX_CANDIDATES, MAX_THREADS
from duo.speculation.constants import DEFAULT, Assumed, assumed
from duo.speculation.estimators import Mean, Time, TimesState, between, restored_times, times_state

AS_FAST: Assumed = (1.0, 1.0, 1.0)
_FORGETS = 0.1  # weight of the last text in the mean length of texts
# Other programs: the seconds over which processor time is counted; of a decode's time, the least share that its threads
# use if they do all the work; the share of that below which decodes are disturbed; and what is forgotten per second.
_WINDOW_S, _COMPUTES, _UNDISTURBED, _FORGOTTEN = 0.1, 0.9, 0.88, 0.02


BatchTimesState = dict[str, TimesState]  # by the number of free cores, "0" for all


class TargetState(TypedDict):
    """What a profile keeps of a target: JSON types, which are checked when they are restored."""

    costs: BatchTimesState  # T(n), alone
    bias: float  # of forecasts for the target alone
    looked_up: float  # tokens that the lookup finds between two other steps
    length: float  # tokens of a text; earlier profiles have none
    memory_gain: float  # how many times as fast texts would have been with a memory; 0: not known, as in earlier ones


class BatchTimes:
    """T(n) in seconds, in one condition: the target alone, or beside one draft; on some number of free cores.

    What was not measured in this condition is inferred from its `relatives`, or assumed. `doubt` is a number of
    standard deviations: with 1, all that is uncertain costs that much more than expected, with -1 less.
    """

    def __init__(self, times: Mapping[int, Time] | None = None) -> None:
        """`times`: what is known of earlier runs, or inferred from another number of cores."""
        self.times: dict[int, Time] = dict(times or {})
        # The other conditions on these cores, and how much slower a decode is here than there, until both are measured.
        self.relatives: list[tuple[BatchTimes, Assumed]] = []
        self._curves: dict[float, list[float]] = {}  # by doubt
        self._basis: dict[int, tuple[float, float]] = {}  # T(n) of which the curves were made, without doubt and with
        self.was_wrong = False  # whether T(n > 1) of an earlier run was wrong, since a text began
        self.is_doubted = False  # whether T(1) is from an earlier run whose other times were wrong

    @property
    def _here(self) -> list[BatchTimes]:
        """All conditions on these cores."""
        return [self, *(other for other, _ in self.relatives)]

    def begin(self) -> None:
        """A text begins."""
        self.was_wrong = False
        for time in self.times.values():
            time.begin()

    def add(self, n: int, seconds: float) -> float:
        """The target decoded a batch of `n` tokens. Returns the factor by which the machine has slowed down: mostly 1.

        A time that contradicts what this run has measured says that the machine has changed, and all other times with
        it. If the time was known from an earlier run, and n > 1, the curve may be wrong: it is forgotten.
        """
        time, factor = self.times.setdefault(n, Time()), 1.0
        was_kept, n_before, before_s = time.is_kept, time.n, time.value
        time.add(seconds)
        is_known = was_kept or n_before >= DEFAULT.few
        if is_known and abs(math.log(time.value / before_s)) > math.log(DEFAULT.max_slower):
            if was_kept and n > 1:
                self._forget_kept()
            elif time.value * DEFAULT.jump > before_s:  # else the earlier time was that of a clock that jumped
                factor = time.value / before_s
                time.value = before_s
                self.scale(factor)
        self.is_doubted = self.is_doubted and n > 1
        now, basis, least = (time.value, time.estimate(1.0)), self._basis.get(n, (0.0, 0.0)), DEFAULT.spread / 20
        if any(abs(a - b) > least * a for a, b in zip(now, basis, strict=True)):
            self._basis[n] = now
            self._follow()
            self.forget_curves()
        return factor

    def scale(self, factor: float) -> None:
        """All decodes on these cores take `factor` times as long as was known."""
        for costs in self._here:
            costs.forget_curves()
            for time in costs.times.values():
                time.value *= factor

    def _used(self) -> dict[int, Time]:
        """The sizes that this text uses and that were known before; none until there are some decodes of them."""
        used = {n: time for n, time in self.times.items() if time.here.n and time.before}
        return used if _n_here(used.values()) >= DEFAULT.few else {}

    def _follow(self) -> None:
        """What T(n) has changed by in this text holds for sizes it does not use: of 1 and n > 1, the lesser change."""
        if not (used := self._used()):
            return
        groups = [time for n, time in used.items() if n == 1], [time for n, time in used.items() if n > 1]
        found = [
            (_mean_ratio((t.value / t.before, t.here.n) for t in times), _n_here(times)) for times in groups if times
        ]
        drift, n = min(found, key=lambda each: abs(math.log(each[0])))
        # The target alone, of many decodes, is known more exactly; other sizes are few.
        least = DEFAULT.spread * (min(1.0, 2 / math.sqrt(n)) if groups[0] else 1.0)
        drift = drift if abs(drift - 1) > least else 1.0
        for costs in self._here:
            if costs is self or not _n_here(costs.times.values()):
                for time in costs.times.values():
                    if time.before and not time.here.n:
                        time.value = time.before * drift

    def _forget_kept(self) -> None:
        """Forget T(n > 1) of earlier runs, and do not compare with them."""
        self.was_wrong, self.is_doubted = True, self.time(1).is_kept
        for costs in self._here:
            for n, time in [(n, time) for n, time in costs.times.items() if n > 1]:
                time.before = 0.0
                if time.is_kept:
                    del costs.times[n]

    def time(self, n: int) -> Time:
        """T(n) as measured in this condition; without any value if it was not. Any thread may call it."""
        return self.times.get(n) or Time()

    @property
    def rests_on_kept(self) -> bool:
        """Whether T(n > 1) of an earlier run is used, which may be wrong."""
        return any(time.is_kept for n, time in self.times.items() if n > 1)

    @property
    def is_odd(self) -> bool:
        """Whether T(1) is longer than that of a larger batch, and rests on few decodes: a device's first are slow."""
        most = self.time(1).value / (1 + DEFAULT.spread)
        larger = (time for n, time in self.times.items() if n > 1 and time.here.n)
        return self.time(1).here.n < DEFAULT.few and any(time.value < most for time in larger)

    def n_affordable(self, credit_s: float) -> int:
        """The largest batch that was measured or, linear beyond, costs at most `credit_s` more than one token."""
        most = max((n for costs in self._here for n in costs.times), default=1)
        each_s = self.seconds(most) / most
        return max(most, int((credit_s + self.seconds(1)) / each_s)) if each_s else most

    def one_here_s(self) -> float:
        """T(1) in this text: as measured, or by its other decodes, relative to those known before it; 0: unknown."""
        one = self.time(1)
        if one.here.n >= DEFAULT.few:
            return one.here.value
        used = self._used().values()
        return one.before * _mean_ratio((time.here.value / time.before, time.here.n) for time in used) if used else 0.0

    def seconds(self, n: int, doubt: float = 0.0) -> float:
        """T(n), the time for a batch of `n` tokens; 0 while nothing is known."""
        return self.curve(n, doubt)[-1]

    def curve(self, n: int, doubt: float = 0.0) -> list[float]:
        """T(1) to T(n), in seconds; linear between the sizes that were measured in this condition or another."""
        found = self._curves.get(doubt, [])
        if len(found) < n:
            found = self._curves[doubt] = self._curve(n, doubt)
        return found[:n]

    def _curve(self, n: int, doubt: float) -> list[float]:
        known = {size: time.estimate(doubt) for size, time in self.times.items()}
        # What was learned in longer texts, or on a slower machine, may be far too long, and then it is not tried.
        used = sorted(size for size, time in self.times.items() if time.here.n)
        for low, high in pairwise(used):
            for size in known.keys() & range(low + 1, high):
                line = known[low] + (known[high] - known[low]) * (size - low) / (high - low)
                known[size] = min(known[size], (1 + DEFAULT.spread) * line)
        for other, slower in self.relatives:
            # How much slower the target is here.
            ratios = [time.value / other.times[i].value for i, time in self.times.items() if i in other.times]
            ratio = _mean_ratio((ratio, 1) for ratio in ratios) if ratios else assumed(slower, doubt)
            known = with_inferred(known, {i: time.estimate(doubt) * ratio for i, time in other.times.items()})
        return interpolated(known, n, doubt) if known else [0.0] * n

    def forget_curves(self) -> None:
        """Something that the curves follow from has changed."""
        for costs in self._here:
            costs._curves.clear()


class TargetCosts:
    """T(n) of one target: alone and beside each draft, for each number of free cores (0: all of them)."""

    def __init__(self) -> None:
        self._by_cores: dict[int, dict[str, BatchTimes]] = {}  # then by draft; "": alone
        self.bias = Mean(value=1.0, n=4)  # how accurate forecasts of the target alone were
        self.n_found = Mean()  # tokens that the lookup finds between two other steps, which a draft has to read
        self.length = Mean(_FORGETS, DEFAULT.horizon, 1)  # tokens of a text
        self.memory_gain = Mean(_FORGETS)  # how many times as fast texts without a memory would have been with one
        self._used: dict[int, float] = {}  # share of a decode's time that its threads usually use, by free cores
        self.warm_s = math.inf  # the time of the first tokens, when the target was loaded
        self.use_cores(0)

    def use_cores(self, n_cores: int) -> None:
        """From now on, times are learned and used for `n_cores` cores free for both models."""
        self.n_cores, self._window = n_cores, (0.0, 0.0)  # processor time per thread, and time, of the last decodes
        self.is_disturbed = False  # whether other programs took cores from these
        self.alone = self.beside("")
        self.alone.forget_curves()

    def beside(self, draft: str, *, is_apart: bool = False) -> BatchTimes:
        """T(n) while the draft of this name computes; `is_apart`: on devices that the target does not use."""
        here = self._by_cores.setdefault(self.n_cores, {})
        if draft not in here:
            here[draft] = BatchTimes()
            if draft:
                here[draft].relatives.append((self.beside(""), AS_FAST if is_apart else DEFAULT.slower))
                here[""].relatives.append((here[draft], AS_FAST))
        if not here[draft].times:  # until they are measured, times are as on other cores, or slower
            others = (each[draft].times for n, each in self._by_cores.items() if n != self.n_cores and draft in each)
            factor = assumed(DEFAULT.slower, 0.0) if self.n_cores else 1.0
            here[draft].times |= {n: time.inferred(factor) for n, time in next(filter(None, others), {}).items()}
        return here[draft]

    def forget(self, draft: str) -> None:
        """This draft will not be used again."""
        for here in self._by_cores.values():
            times = here.pop(draft, None)
            here[""].relatives = [(other, slower) for other, slower in here[""].relatives if other is not times]

    def begin(self) -> None:
        """A text begins."""
        for here in self._by_cores.values():
            for times in here.values():
                times.begin()

    def ended(self, n_tokens: int) -> None:
        """A text has ended, after so many new tokens."""
        if n_tokens:
            self.length.add(n_tokens)

    def learn_cores(self, cpu_s: float, seconds: float) -> bool:
        """The threads of a decode used `cpu_s` each. Returns whether other programs have slowed down all before.

        Where threads that do all the work use less than usual, other programs compute, too: what decodes take now says
        nothing about later, unless the others go on for some seconds. Beside other devices, nothing is concluded.
        """
        used_s, wall_s = self._window
        self._window = used_s, wall_s = used_s + cpu_s, wall_s + seconds
        if wall_s < _WINDOW_S:  # a system counts the processor time of other threads at its ticks
            return False
        share, before = min(1.0, used_s / wall_s), self._used.get(self.n_cores, 0.0) * (1 - _FORGOTTEN * wall_s)
        self._used[self.n_cores] = usual = max(share, before)
        self.is_disturbed, self._window = usual >= _COMPUTES and share < _UNDISTURBED * usual, (0.0, 0.0)
        return share >= _COMPUTES and 0 < before < _UNDISTURBED * share

    def is_jump(self, seconds: float) -> bool:
        """Whether no decode takes so long, by the other times and the warm-up: the clock has jumped meanwhile."""
        if seconds <= 1:
            return False
        known = [time.value for times in self._by_cores[self.n_cores].values() for time in times.times.values()]
        return seconds > DEFAULT.jump * min([*known, self.warm_s])

    def times(self, draft: str = "") -> BatchTimesState:
        """What was measured alone, or beside this `draft`, as JSON types."""
        return {str(n): times_state(here[draft].times) for n, here in self._by_cores.items() if draft in here}

    def restore_times(self, state: BatchTimesState, draft: str = "") -> None:
        """Start from the times() of an earlier run. Raises KeyError, TypeError or ValueError if they are damaged."""
        now = self.n_cores
        for n_cores, times in state.items():
            self.n_cores = int(between(int(n_cores), 0, MAX_THREADS))
            costs = self.beside(draft)
            inferred = {n: time for n, time in costs.times.items() if time.is_inferred}
            costs.times = inferred | restored_times(times, 1, MAX_CANDIDATES + 1)
            costs.forget_curves()
        self.use_cores(now)

    def state(self) -> TargetState:
        """What was learned of the target alone, as JSON types."""
        return {
            "costs": self.times(),
            "bias": self.bias.value,
            "looked_up": self.n_found.value,
            "length": self.length.value,
            "memory_gain": self.memory_gain.value,
        }

    def restore(self, state: TargetState) -> bool:
        """Start from the state() of an earlier run. False, and nothing is restored, if it is damaged."""
        try:
            bias, looked_up = (between(state[name], 0, 1e9) for name in ("bias", "looked_up"))
            length = between(state.get("length", DEFAULT.horizon), 1, 1e9)
            memory_gain = between(state.get("memory_gain", 0.0), 0, 1e9)
            TargetCosts().restore_times(state["costs"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self.restore_times(state["costs"])
        self.bias = Mean(value=min(max(bias, 0.5), 2.0), n=4)
        self.n_found = Mean(value=looked_up, n=DEFAULT.probe_tokens // 2)
        self.length = Mean(_FORGETS, length, DEFAULT.few)
        self.memory_gain = Mean(_FORGETS, memory_gain, DEFAULT.few if memory_gain else 0)
        return True


def _n_here(times: Iterable[Time]) -> int:
    """How often these were measured in this text."""
    return sum(time.here.n for time in times)


def _mean_ratio(ratios: Iterable[tuple[float, int]]) -> float:
    """The geometric mean of ratios, each with its weight."""
    logs = [(math.log(ratio) * n, n) for ratio, n in ratios]
    return math.exp(sum(log for log, _ in logs) / sum(n for _, n in logs))


def interpolated(times: Mapping[int, float], n: int, doubt: float = 0.0) -> list[float]:
    """Seconds for 1 to at least `n` tokens, linear between the sizes in `times`, of which there is at least one.

    Of several tokens, none takes longer than a larger batch, to which it could be padded. Beyond the known sizes, each
    token adds what is assumed with this `doubt` (see BatchTimes).
    """
    known, least_s = dict(times), math.inf
    for size in sorted(times, reverse=True):
        least_s = min(least_s, times[size])
        known[size] = least_s if size > 1 else times[1]
    second, growth = assumed(DEFAULT.second, doubt), assumed(DEFAULT.growth, doubt)
    least = min(known)
    first = known.setdefault(1, known[least] / (1 + second + growth * (least - 2)))
    if max(known) == 1:
        known[2] = first * (1 + second)
    if (most := max(known)) < n:
        known[n] = known[most] + (n - most) * growth * first
    found: list[float] = []
    for low, high in pairwise(sorted(known)):
        step = (known[high] - known[low]) / (high - low)
        found += [known[low] + i * step for i in range(high - low)]
    return [*found, known[max(known)]]


def with_inferred(own: Mapping[int, float], inferred: Mapping[int, float]) -> dict[int, float]:
    """`own` times, and for other sizes `inferred` ones, which take no less than smaller batches of `own`."""
    found = {n: max([seconds, *(own[m] for m in own if m < n)]) for n, seconds in inferred.items() if n not in own}
    return found | dict(own)

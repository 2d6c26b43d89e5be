"""T(n): what the target's decodes cost, learned while running. One table per loaded target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from duo.config import MAX_CANDIDATES, MAX_THREADS
from duo.speculation.constants import DEFAULT, Assumed, assumed
from duo.speculation.estimators import Time, between, restored_times, times_state

AS_FAST: Assumed = (1.0, 1.0, 1.0)


BatchTimesState = Mapping[str, Mapping[str, Sequence[float]]]  # by free cores and size: [seconds, spread]


class BatchTimes:
    """T(n) in seconds, in one condition: the target alone, or beside one draft; on some number of free cores.

    What was not measured in this condition is inferred from its `relatives`, or assumed. `doubt` is a number of
    standard deviations: with 1, all that is uncertain costs that much more than expected, with -1 less.
    """

    def __init__(self, here: list[BatchTimes]) -> None:
        """`here`: the conditions on the same cores, to which this one is added. The first is the target alone."""
        self.here = here
        here.append(self)
        # Other conditions, and how much slower a decode is here than there, until both are measured.
        self.relatives: list[tuple[BatchTimes, Assumed]] = []
        self.times: dict[int, Time] = {}
        self._curves: dict[float, list[float]] = {}  # by doubt
        self._basis: dict[int, tuple[float, float]] = {}  # T(n) of which the curves were made, without doubt and with
        self.was_wrong = False  # whether T(n > 1) of an earlier run was wrong, since a text began
        self.is_doubted = False  # whether T(1) is from an earlier run whose other times were wrong

    def begin(self) -> None:
        """A text begins."""
        self.was_wrong = False
        for time in self.times.values():
            time.begin()

    def add(self, n: int, seconds: float) -> float:
        """The target decoded a batch of `n` tokens. Returns the factor by which the machine's speed has changed: 1.0.

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
                self._scale(factor, time)
        self.is_doubted = self.is_doubted and n > 1
        now = time.value, time.estimate(1.0)
        least = DEFAULT.spread / 20
        if any(abs(a - b) > least * a for a, b in zip(now, self._basis.get(n, (0.0, 0.0)), strict=True)):
            self._basis[n] = now
            self._follow()
            self.forget_curves()
        return factor

    def _used(self) -> dict[int, Time]:
        """The sizes that this text uses and that were known before; none until there are five decodes of them."""
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
        for costs in self.here:
            if costs is self or not any(time.here.n for time in costs.times.values()):
                for time in costs.times.values():
                    if time.before and not time.here.n:
                        time.value = time.before * drift

    def _forget_kept(self) -> None:
        """Forget T(n > 1) of earlier runs, and do not compare with them."""
        self.was_wrong, self.is_doubted = True, self.time(1).is_kept
        for costs in self.here:
            for n, time in [(n, time) for n, time in costs.times.items() if n > 1]:
                time.before = 0.0
                if time.is_kept:
                    del costs.times[n]

    def _scale(self, factor: float, known: Time) -> None:
        for time in (time for costs in self.here for time in costs.times.values()):
            if time is not known:
                time.value *= factor

    def time(self, n: int) -> Time:
        """T(n) as measured in this condition; without any value if it was not. Any thread may call it."""
        return self.times.get(n) or Time()

    @property
    def is_odd(self) -> bool:
        """Whether T(1) is longer than that of a larger batch, and rests on few decodes: a device's first are slow."""
        most = self.time(1).value / (1 + DEFAULT.spread)
        larger = (time for n, time in self.times.items() if n > 1 and time.here.n)
        return self.time(1).here.n < DEFAULT.few and any(time.value < most for time in larger)

    def n_affordable(self, credit_s: float) -> int:
        """The largest batch that was measured or, linear beyond, costs at most `credit_s` more than one token."""
        family = [self, *(other for other, _ in self.relatives)]
        most = max((n for costs in family for n in costs.times), default=1)
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
        """Something that the curves follow from has changed, here and in the relatives."""
        self._curves.clear()
        for other, _ in self.relatives:
            other._curves.clear()


class TargetCosts:
    """T(n) of one target: alone and beside each draft, for each number of free cores (0: all of them)."""

    def __init__(self) -> None:
        self._by_cores: dict[int, dict[str, BatchTimes]] = {}  # then by draft; "": alone
        self._apart = set[str]()  # drafts that share no device with the target
        self.warm_s = math.inf  # the time of the first tokens, when the target was loaded
        self.use_cores(0)

    def use_cores(self, n_cores: int) -> None:
        """From now on, times are learned and used for `n_cores` cores free for both models."""
        self.n_cores = n_cores
        self.alone = self._at(n_cores, "")

    def beside(self, draft: str, *, is_apart: bool = False) -> BatchTimes:
        """T(n) while the draft of this name computes; `is_apart`: on devices that the target does not use."""
        if is_apart:
            self._apart.add(draft)
        return self._at(self.n_cores, draft)

    def _at(self, n_cores: int, draft: str) -> BatchTimes:
        here = self._by_cores.setdefault(n_cores, {})
        if draft not in here:
            alone = here.get("") or self._related(n_cores, "")
            if draft:
                made = self._related(n_cores, draft)
                made.relatives.insert(0, (alone, AS_FAST if draft in self._apart else DEFAULT.slower))
                alone.relatives.insert(0, (made, AS_FAST))
        return here[draft]

    def _related(self, n_cores: int, draft: str) -> BatchTimes:
        """New times, related to those of the same condition on other numbers of cores."""
        here = self._by_cores[n_cores]
        made = BatchTimes(next(iter(here.values())).here if here else [])
        here[draft] = made
        for other in (each for n, each in self._by_cores.items() if n != n_cores):
            if draft in other:
                made.relatives.append((other[draft], DEFAULT.slower))
                other[draft].relatives.append((made, AS_FAST))
            if draft and "" in other:
                made.relatives.append((other[""], DEFAULT.slower))
        return made

    def _all(self) -> Iterator[BatchTimes]:
        return (times for here in self._by_cores.values() for times in here.values())

    def begin(self) -> None:
        """A text begins."""
        for times in self._all():
            times.begin()

    def learn_warmup(self, seconds: float) -> None:
        """The target decoded its first tokens in so many seconds."""
        self.warm_s = seconds
        self.forget_jumps()

    def is_jump(self, seconds: float) -> bool:
        """Whether no decode takes so long, by the other times and the warm-up: the clock has jumped meanwhile."""
        if seconds <= 1:
            return False
        known = [time.value for times in self._all() for time in times.times.values()]
        return seconds > DEFAULT.jump * min([*known, self.warm_s])

    def forget_jumps(self) -> None:
        """Forget what an earlier run has measured while the clock jumped."""
        for times in self._all():
            for n in [n for n, time in times.times.items() if time.is_kept and self.is_jump(time.value)]:
                del times.times[n]
            times.forget_curves()

    def state(self, draft: str = "") -> dict[str, Mapping[str, Sequence[float]]]:
        """What was measured alone, or beside this `draft`, as JSON types."""
        return {str(n): times_state(here[draft].times) for n, here in self._by_cores.items() if draft in here}

    def restore(self, state: BatchTimesState, draft: str = "") -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for n_cores, times in state.items():
            found = restored_times(times, 1, MAX_CANDIDATES + 1)
            self._at(int(between(int(n_cores), 0, MAX_THREADS)), draft).times.update(found)
        for each in self._all():
            each.forget_curves()


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

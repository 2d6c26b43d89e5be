"""What decodes cost, learned while running."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

from duo.config import MAX_BRANCHES, MAX_CANDIDATES, MAX_THREADS
from duo.speculation.constants import DEFAULT, Assumed, assumed
from duo.speculation.estimators import Time
from duo.speculation.policy_state import CostState, between, duration

# What is timed, with the smallest and the largest number: batch of the target; the draft's threads; its batch; its
# sequences.
_RANGES = {
    "target_s": (1, MAX_CANDIDATES + 1),
    "draft_s": (1, MAX_THREADS),
    "pair_s": (2, 2),
    "branch_s": (2, MAX_BRANCHES + 1),
}


class CostModel:
    """What decodes cost, in seconds, in one condition: one model at a time, or both concurrently; on some free cores.

    What was not measured in this condition is inferred from its `relatives`, or assumed. `doubt` is a number of
    standard deviations: with 1, all that is uncertain costs that much more than expected, with -1 less.
    """

    def __init__(self) -> None:
        # The other condition on these cores, then this one on others: how much slower than these, until measured.
        self.relatives: list[tuple[CostModel, Assumed]] = []
        self._times: dict[str, dict[int, Time]] = {name: {} for name in _RANGES}
        self.target_times, self.draft_times, self.pair_times, self.branch_times = self._times.values()
        self._curves: dict[float, list[float]] = {}  # by doubt
        self._basis: dict[int, tuple[float, float]] = {}  # T(n) of which they were made, without doubt and with
        self.inferred_s = 0.0  # the draft's time for one token, as inferred from others, until it is measured
        self.warm_s = math.inf  # the target's time for the first tokens, when it was loaded
        self.was_wrong = False  # whether T(n > 1) of an earlier run was, since a text began
        self.is_doubted = False  # whether T(1) is from an earlier run whose other times have turned out to be wrong

    @property
    def _family(self) -> list[CostModel]:
        return [self, *(other for other, _ in self.relatives)]

    def begin(self) -> None:
        """A text begins."""
        self.was_wrong = False
        for time in self.target_times.values():
            time.begin()

    # The draft

    @property
    def draft_s(self) -> float:
        """Time for one draft token on the fastest number of threads; 0 while unknown."""
        return self.draft_time()

    def draft_time(self, doubt: float = 0.0, n_sequences: int = 1) -> float:
        """The same with `doubt`; or for one token in each of `n_sequences`: at least as long, and relative to it."""
        if self.draft_times:
            one_s = min(time.estimate(doubt) for time in self.draft_times.values())
        else:
            known = ((other, slower) for other, slower in self.relatives if other.draft_times or other.inferred_s)
            inferred = (other.draft_time(doubt) * assumed(slower, doubt) for other, slower in known)
            one_s = self.inferred_s or next(inferred, 0.0)
        if n_sequences == 1 or not one_s:
            return one_s
        times = {1: one_s} | {n: max(one_s, time.estimate(doubt)) for n, time in self._repeated.items()}
        for other, _ in self.relatives:
            theirs = {n: time.value / other.draft_s * one_s for n, time in other._repeated.items()}
            times = _with_inferred(times, theirs)
        return _interpolated(times, n_sequences)[n_sequences - 1]

    @property
    def _repeated(self) -> dict[int, Time]:
        """Times for several sequences; single ones only if there are no others.

        A GPU prepares each number of sequences when it is first used, and one that seems slow is not used again.
        """
        return {n: time for n, time in self.branch_times.items() if time.n > 1 or time.is_kept} or self.branch_times

    def pair_time(self, doubt: float = 0.0) -> float:
        """The draft's time for a decode of two tokens; at least that for one."""
        one_s = self.draft_time(doubt)
        return max(
            one_s, self.pair_times[2].estimate(doubt) if self.pair_times else assumed(DEFAULT.pair, doubt) * one_s
        )

    def add_draft(self, seconds: float, n_threads: int = 1, n_sequences: int = 1) -> None:
        """The draft decoded one token in each of `n_sequences`."""
        times, key = (self.draft_times, n_threads) if n_sequences == 1 else (self.branch_times, n_sequences)
        times.setdefault(key, Time()).add(seconds)

    def add_pair(self, seconds: float) -> None:
        """The draft decoded two tokens at once."""
        self.pair_times.setdefault(2, Time()).add(seconds)

    # The target

    def add_target(self, n: int, seconds: float) -> None:
        """The target decoded a batch of `n` tokens.

        If this contradicts what was known, the machine has changed, and all other times with it. But if that was known
        from an earlier run and n > 1, the curve may be wrong: it is forgotten.
        """
        time = self.target_times.setdefault(n, Time())
        was_kept, n_before, before_s = time.is_kept, time.n, time.value
        time.add(seconds)
        is_known = was_kept or n_before >= DEFAULT.few
        if is_known and abs(math.log(time.value / before_s)) > math.log(DEFAULT.max_slower):
            if was_kept and n > 1:
                self._forget_kept()
            elif time.value * DEFAULT.jump > before_s:  # else that was the time of a clock that jumped
                self._scale(time.value / before_s, time)
        self.is_doubted = self.is_doubted and n > 1
        now = time.value, time.estimate(1.0)
        if any(abs(a - b) > DEFAULT.noticeable * a for a, b in zip(now, self._basis.get(n, (0.0, 0.0)), strict=True)):
            self._basis[n] = now
            self._follow()
            self.forget_curves()

    @property
    def _both(self) -> list[CostModel]:
        """This condition, and the other one on the same cores."""
        return self._family[:2]

    def _used(self) -> dict[int, Time]:
        """The sizes that this text uses and that were known before; none until there are five decodes of them."""
        used = {n: time for n, time in self.target_times.items() if time.here.n and time.before}
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
        for costs in self._both:
            if costs is self or not any(time.here.n for time in costs.target_times.values()):
                for time in costs.target_times.values():
                    if time.before and not time.here.n:
                        time.value = time.before * drift

    def _forget_kept(self) -> None:
        """Forget T(n > 1) of earlier runs, and do not compare with them."""
        self.was_wrong, self.is_doubted = True, self.target(1).is_kept
        for costs in self._both:
            for n, time in [(n, time) for n, time in costs.target_times.items() if n > 1]:
                time.before = 0.0
                if time.is_kept:
                    del costs.target_times[n]

    def _scale(self, factor: float, known: Time) -> None:
        """Multiply all times but `known`."""
        for time in (time for costs in self._both for times in costs._times.values() for time in times.values()):
            if time is not known:
                time.value *= factor

    def target(self, n: int) -> Time:
        """T(n) as measured in this condition; without any value if it was not. Any thread may call it."""
        return self.target_times.get(n) or Time()

    @property
    def is_odd(self) -> bool:
        """Whether T(1) is longer than that of a larger batch, and rests on few decodes: a device's first are slow."""
        most = self.target(1).value / (1 + DEFAULT.spread)
        larger = (time for n, time in self.target_times.items() if n > 1 and time.here.n)
        return self.target(1).here.n < DEFAULT.few and any(time.value < most for time in larger)

    def n_affordable(self, credit_s: float) -> int:
        """The largest batch that was measured or, linear beyond, costs at most `credit_s` more than one token."""
        most = max((n for costs in self._family for n in costs.target_times), default=1)
        each_s = self.target_s(most) / most
        return max(most, int((credit_s + self.target_s(1)) / each_s)) if each_s else most

    def alone_here_s(self) -> float:
        """T(1) in this text: as measured, or by its other decodes, relative to those known before it; 0: unknown."""
        one = self.target(1)
        if one.here.n >= DEFAULT.few:
            return one.here.value
        used = self._used().values()
        return one.before * _mean_ratio((time.here.value / time.before, time.here.n) for time in used) if used else 0.0

    def target_s(self, n: int, doubt: float = 0.0) -> float:
        """T(n), the time for a batch of `n` tokens; 0 while nothing is known."""
        return self.curve(n, doubt)[-1]

    def curve(self, n: int, doubt: float = 0.0) -> list[float]:
        """T(1) to T(n), in seconds; linear between the sizes that were measured in this condition or another."""
        found = self._curves.get(doubt, [])
        if len(found) < n:
            found = self._curves[doubt] = self._curve(n, doubt)
        return found[:n]

    def _curve(self, n: int, doubt: float) -> list[float]:
        known = {size: time.estimate(doubt) for size, time in self.target_times.items()}
        # What was learned in longer texts, or on a slower machine, may be far too long, and then it is not tried.
        used = sorted(size for size, time in self.target_times.items() if time.here.n)
        for low, high in pairwise(used):
            for size in known.keys() & range(low + 1, high):
                line = known[low] + (known[high] - known[low]) * (size - low) / (high - low)
                known[size] = min(known[size], (1 + DEFAULT.spread) * line)
        for other, slower in self.relatives:
            # How much slower the target is here.
            ratios = [
                time.value / other.target_times[i].value
                for i, time in self.target_times.items()
                if i in other.target_times
            ]
            ratio = _mean_ratio((ratio, 1) for ratio in ratios) if ratios else assumed(slower, doubt)
            known = _with_inferred(known, {i: time.estimate(doubt) * ratio for i, time in other.target_times.items()})
        return _interpolated(known, n, doubt) if known else [0.0] * n

    def is_jump(self, seconds: float) -> bool:
        """Whether no decode takes so long, by the other times and the warm-up: the clock has jumped meanwhile."""
        if seconds <= DEFAULT.jump_s:
            return False
        known = [time.value for costs in self._family for time in costs.target_times.values()]
        return seconds > DEFAULT.jump * min([*known, *(costs.warm_s for costs in self._family)])

    # What is kept

    def state(self) -> CostState:
        """What was measured, as JSON types."""
        return {
            name: {str(n): [time.value, time.spread] for n, time in sorted(times.items())}
            for name, times in (self._times | {"branch_s": self._repeated}).items()
        }

    def restore(self, state: CostState) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for name, times in self._times.items():
            for n, (value, spread) in state.get(name, {}).items():
                times[int(between(int(n), *_RANGES[name]))] = Time(duration(value), between(spread, 0, 1))
        self.forget_curves()

    def forget_jumps(self) -> None:
        """Forget what an earlier run has measured while the clock jumped."""
        for times in self._times.values():
            for n in [n for n, time in times.items() if time.is_kept and self.is_jump(time.value)]:
                del times[n]
        self.forget_curves()

    def forget_curves(self) -> None:
        """Something that the curves follow from has changed."""
        for costs in self._family:
            costs._curves.clear()


def _n_here(times: Iterable[Time]) -> int:
    """How often these were measured in this text."""
    return sum(time.here.n for time in times)


def _mean_ratio(ratios: Iterable[tuple[float, int]]) -> float:
    """The geometric mean of ratios, each with its weight."""
    logs = [(math.log(ratio) * n, n) for ratio, n in ratios]
    return math.exp(sum(log for log, _ in logs) / sum(n for _, n in logs))


def _interpolated(times: Mapping[int, float], n: int, doubt: float = 0.0) -> list[float]:
    """Seconds for 1 to at least `n` tokens, linear between the sizes in `times`, of which there is at least one.

    Of several tokens, none takes longer than a larger batch, to which it could be padded. Beyond the known sizes, each
    token adds what is assumed with this `doubt` (see CostModel).
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


def _with_inferred(own: Mapping[int, float], inferred: Mapping[int, float]) -> dict[int, float]:
    """`own` times, and for other sizes `inferred` ones, which take no less than smaller batches of `own`."""
    found = {n: max([seconds, *(own[m] for m in own if m < n)]) for n, seconds in inferred.items() if n not in own}
    return found | dict(own)

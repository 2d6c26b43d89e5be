"""What decodes cost and how often candidates are accepted, learned while running."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import truediv
from typing import Any

from duo.config import MAX_BRANCHES, MAX_CANDIDATES, MAX_THREADS
from duo.spec.constants import DEFAULT, PolicyConfig
from duo.spec.curves import increasing, interpolated

_LEAST_S, _MOST_S = 1e-7, 1e5  # plausible times: beyond, ratios of them overflow
_MOST = 2**31 - 1
_LATER = "branch_s"  # profiles of earlier versions have none
# Smallest and largest batch, number of threads, and of sequences.
_SIZES = {"target_s": (1, MAX_CANDIDATES + 1), "draft_s": (1, MAX_THREADS), _LATER: (2, MAX_BRANCHES + 1)}


class Mean:
    """A running mean that forgets: the first values have equal weight, later ones at least `weight`."""

    def __init__(self, weight: float = 0.1, value: float = 0.0, n: int = 0) -> None:
        """Starts with a `value` that counts as `n` values."""
        self._weight = weight
        self.n = n
        self.value = value

    def add(self, value: float) -> None:
        """Add one value."""
        self.n += 1
        self.value += max(self._weight, 1 / self.n) * (value - self.value)


class Time(Mean):
    """A mean of times in seconds that is robust against single interruptions, and its relative spread."""

    def __init__(self, value: float = 0.0, n: int = 0, spread: float = DEFAULT.spread) -> None:
        """Starts with a `value` that counts as `n` measurements."""
        super().__init__(value=value, n=n)
        self.spread = spread  # standard deviation of one measurement, relative to the mean

    def doubted(self, doubt: float) -> float:
        """The mean, plus `doubt` times its standard deviation."""
        return self.value * (1 + doubt * self.spread * math.sqrt(max(self._weight / 2, 1 / self.n)))

    def add(self, value: float) -> None:
        """Add one measurement."""
        if self.n == 0:
            super().add(value)
        elif self.n == 1:  # the smaller of the first two: disturbances only make a decode slower
            self.n, self.value = 2, min(self.value, value)
        else:
            value = min(value, DEFAULT.most_slower * self.value)
            variance, weight = self.spread**2, max(self._weight, 1 / (self.n + 2))
            self.spread = math.sqrt(variance + weight * ((value / self.value - 1) ** 2 - variance))
            super().add(value)


class CostModel:
    """What decodes cost, in seconds, in one condition: one model at a time, or both concurrently.

    `doubt` is a number of standard deviations: with 1, all that is uncertain costs that much more than expected.
    """

    def __init__(self, other: CostModel | None = None, slower: float = 1.0, config: PolicyConfig = DEFAULT) -> None:
        """`other` is the other condition, from which times not measured in this one are inferred.

        `slower`: how much slower than there, before that is measured.
        """
        self._other = other
        self._slower = slower
        self._config = config
        self._target: dict[int, Time] = {}  # by tokens in the batch
        self._draft: dict[int, Time] = {}  # by threads
        self._branched: dict[int, Time] = {}  # of the draft too, by sequences in one decode, from 2 on
        self._kept: dict[tuple[str, int], float] = {}  # restored times
        self._curves: dict[float, list[float]] = {}  # by doubt
        self._drawn: dict[int, tuple[float, float]] = {}  # T(n) of which they were made, without doubt and with
        if other is not None:
            other._other = self

    @property
    def draft_s(self) -> float:
        """Time for one draft token on the fastest number of threads; 0 while unknown."""
        return self.draft_time(0.0)

    def draft_time(self, doubt: float, n_sequences: int = 1) -> float:
        """The same, with `doubt`; or the time for one token in each of `n_sequences`, at least as long."""
        if n_sequences > 1:
            return self._branches_time(doubt, n_sequences)
        if self._draft:
            return min(time.doubted(doubt) for time in self._draft.values())
        return self._other.draft_time(doubt) * self._slower if self._other and self._other._draft else 0.0

    def _branches_time(self, doubt: float, n: int) -> float:
        """t_d of `n` sequences: from what was measured here or, relative to one sequence, in the other condition."""
        if not (one_s := self.draft_time(doubt)):
            return 0.0
        known = {size: time.doubted(doubt) for size, time in self._branched.items()}
        if self._other is not None and (theirs := self._other.draft_time(0.0)):
            ratio = one_s / theirs
            known = {size: time.value * ratio for size, time in self._other._branched.items()} | known
        n_measured = {1: _MOST} | {size: time.n for size, time in self._branched.items()}
        return interpolated(increasing({1: one_s, **known}, n_measured), n, self._config)[n - 1]

    def draft_curve(self, n: int) -> list[float]:
        """t_d of 1 to `n` sequences; empty unless it was measured for several, in this condition or the other."""
        is_known = self._branched or (self._other is not None and self._other._branched)
        return [self.draft_time(0.0, i) for i in range(1, n + 1)] if is_known and self.draft_s else []

    def draft_threads(self, choices: Sequence[int]) -> int:
        """The number of threads to draft with, of `choices`: the one that may be the fastest (Auer et al. 2002)."""
        return min(choices, key=lambda n: self._draft[n].doubted(-1.0) if n in self._draft else 0.0)

    def knows_draft(self, n_threads: int, n_sequences: int = 1) -> bool:
        """Whether the draft was measured with `n_threads` or `n_sequences`, in this run or an earlier one."""
        return n_threads in self._draft if n_sequences == 1 else n_sequences in self._branched

    def add_draft(self, seconds: float, n_threads: int = 1, n_sequences: int = 1) -> None:
        """The draft decoded one token in each of `n_sequences`."""
        if n_sequences == 1:
            self._draft.setdefault(n_threads, Time()).add(seconds)
        else:
            self._branched.setdefault(n_sequences, Time()).add(seconds)

    def add_target(self, n: int, seconds: float) -> None:
        """The target decoded a batch of `n` tokens."""
        time = self._target.setdefault(n, Time())
        is_check = n == 1 and time.n == DEFAULT.kept and ("target_s", 1) in self._kept
        if is_check and DEFAULT.most_slower * seconds < self.target_s(1):
            self._scale(seconds / self.target_s(1))  # the machine was busy when the restored times were measured
        time.add(seconds)
        now = time.value, time.doubted(1.0)
        if any(abs(a - b) > DEFAULT.noticeable * a for a, b in zip(now, self._drawn.get(n, (0.0, 0.0)), strict=True)):
            self._drawn[n] = now
            self._forget_curves()

    def measured_s(self, n: int) -> float:
        """T(n) as measured in this condition; 0 if it was not. Any thread may call it."""
        time = self._target.get(n)
        return time.value if time is not None else 0.0

    def n_measured(self, n: int) -> int:
        """How many times a batch of `n` tokens was measured in this condition."""
        return self._target[n].n if n in self._target else 0

    def n_affordable(self, credit_s: float) -> int:
        """The largest batch that costs at most `credit_s` more than one token, even if T(n) is linear where unknown.

        At least the largest that was measured.
        """
        most = max([*self._target, *(self._other._target if self._other else ())], default=1)
        each_s = self.target_s(most) / most
        return max(most, int((credit_s + self.target_s(1)) / each_s)) if each_s else most

    def reliable_ms(self, n: int) -> dict[str, float | None]:
        """T(n) in ms, from at least five measurements in this run, and from earlier runs; None if unknown."""
        kept_s = self._kept.get(("target_s", n))
        is_known = self.n_measured(n) - (DEFAULT.kept if kept_s else 0) >= DEFAULT.few
        now = 1000 * self._target[n].value if is_known else None
        return {"this_run": now, "earlier_runs": 1000 * kept_s if kept_s else None}

    def target_s(self, n: int) -> float:
        """T(n), the time for a batch of `n` tokens; 0 while nothing is known."""
        return self.curve(n)[-1]

    def curve(self, n: int, doubt: float = 0.0) -> list[float]:
        """T(1) to T(n), in seconds; linear between the sizes that were measured in this condition or the other."""
        found = self._curves.get(doubt, [])
        if len(found) < n:
            found = self._curves[doubt] = self._interpolated(n, doubt)
        return found[:n]

    def _interpolated(self, n: int, doubt: float) -> list[float]:
        known = {size: time.doubted(doubt) for size, time in self._target.items()}
        if self._other is not None:
            ratio = self._ratio()
            known |= {size: time.value * ratio for size, time in self._other._target.items() if size not in known}
        if not known:
            return [0.0] * n
        return interpolated(increasing(known, self._n_targets()), n, self._config)

    def _n_targets(self) -> dict[int, int]:
        return {n: time.n for n, time in self._target.items()}

    def _ratio(self) -> float:
        """How much slower the target is here than in the other condition."""
        theirs = self._other._target if self._other else {}
        logs = [math.log(self._target[n].value / theirs[n].value) for n in self._target if n in theirs]
        return math.exp(sum(logs) / len(logs)) if logs else self._slower

    def target_ms(self) -> dict[str, float]:
        """T(n) in ms for each n that was measured in this run and condition."""
        fresh = {
            n: time for n, time in self._target.items() if ("target_s", n) not in self._kept or time.n > DEFAULT.kept
        }
        return {str(n): 1000 * time.value for n, time in sorted(fresh.items())}

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON types: for each size or number of threads [seconds, relative spread].

        Of the target, only what is plausible: never less for a larger batch, and without batches that were measured
        once and took longer than their tokens one by one.
        """
        first_s = self._target[1].value if 1 in self._target else math.inf
        target = {n: time for n, time in self._target.items() if time.n > 1 or time.value <= n * first_s}
        seconds = increasing({n: time.value for n, time in target.items()}, self._n_targets())
        return {
            "target_s": {str(n): [seconds[n], time.spread] for n, time in sorted(target.items())},
            "draft_s": {str(n): [time.value, time.spread] for n, time in sorted(self._draft.items())},
            _LATER: {str(n): [time.value, time.spread] for n, time in sorted(self._branched.items())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for name, times in self._times():
            least, most = _SIZES[name]
            for key, (value, spread) in (state[name] if name in state or name != _LATER else {}).items():
                n, seconds = int(key), duration(value)
                if not least <= n <= most:
                    raise ValueError("not a number of tokens, threads or sequences")
                self._kept[name, n] = seconds
                times[n] = Time(seconds, DEFAULT.kept, between(spread, 0, 1))
        self._forget_curves()

    def _scale(self, factor: float) -> None:
        """Multiply all times of both conditions."""
        for costs in filter(None, (self, self._other)):
            for _, times in costs._times():
                for time in times.values():
                    time.value *= factor

    def _times(self) -> list[tuple[str, dict[int, Time]]]:
        return [("target_s", self._target), ("draft_s", self._draft), (_LATER, self._branched)]

    def _forget_curves(self) -> None:
        self._curves.clear()
        if self._other is not None:
            self._other._curves.clear()


class Calibration:
    """a(c): the probability that a candidate of confidence c is accepted, if all before it are.

    The confidence is the gap between the draft's top two logits. A histogram with exponential forgetting.
    """

    EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # between the bins

    def __init__(self) -> None:
        # Typical for a small draft of the same family, for the gap in the middle of each bin.
        middles = [(low + high) / 2 for low, high in zip((0.0, *self.EDGES), (*self.EDGES, 8.0), strict=True)]
        self._begin([1 - 0.6 * math.exp(-gap / 1.5) for gap in middles], 0.7)
        self._begin_ranks(DEFAULT.ranks)

    def _begin(self, shares: Iterable[float], mean: float, n: int = 4) -> None:
        self._accepted = [DEFAULT.prior_weight * share for share in shares]
        self._seen = [DEFAULT.prior_weight] * len(self._accepted)
        self._all = Mean(weight=1 - DEFAULT.memory, value=mean, n=n)

    def _begin_ranks(self, shares: Iterable[float], n: int = 4) -> None:
        self._ranks = [Mean(weight=1 - DEFAULT.memory, value=share, n=n) for share in shares]

    @property
    def mean(self) -> float:
        """The acceptance rate over all confidences."""
        return self._all.value

    @property
    def sd(self) -> float:
        """Standard deviation of the mean."""
        share = min(max(self.mean, 0.1), 0.9)
        return math.sqrt(share * (1 - share) / min(self._all.n, 50))

    def probability(self, confidence: float) -> float:
        """a(`confidence`)."""
        i = bisect_right(self.EDGES, confidence)
        return self._accepted[i] / self._seen[i]

    def probabilities(self) -> tuple[float, ...]:
        """a(c) for each bin, in the order of EDGES."""
        return tuple(map(truediv, self._accepted, self._seen))

    @property
    def ranks(self) -> tuple[float, ...]:
        """Of each rank, how probable it is that the target's token is the alternative of this rank to a wrong one."""
        return tuple(rank.value for rank in self._ranks)

    def add_rank(self, rank: int) -> None:
        """Instead of a wrong candidate came its alternative of this `rank`; -1: another token."""
        for i, share in enumerate(self._ranks):
            share.add(float(i == rank))

    def add(self, confidence: float, accepted: bool) -> None:
        """Learn from a candidate, which was or would have been `accepted` or not."""
        i = bisect_right(self.EDGES, confidence)
        self._seen[i] = DEFAULT.memory * self._seen[i] + 1
        self._accepted[i] = DEFAULT.memory * self._accepted[i] + accepted
        self._all.add(float(accepted))

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON types."""
        found = {"edges": list(self.EDGES), "accepted": list(self.probabilities()), "mean": self.mean}
        return {**found, "ranks": list(self.ranks)}

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        shares, mean = [between(share, 0, 1) for share in state["accepted"]], between(state["mean"], 0, 1)
        if state["edges"] != list(self.EDGES) or len(shares) != len(self._seen):
            raise ValueError("other bins")
        ranks = [between(share, 0, 1) for share in state.get("ranks", DEFAULT.ranks)]  # earlier versions kept none
        self._begin(shares, mean, DEFAULT.kept_scores)
        if len(ranks) == len(self._ranks):
            self._begin_ranks(ranks, DEFAULT.kept_scores)


# A restored document may be damaged in any way: each of its values passes one of these.


def duration(value: Any) -> float:
    """`value`, if it can be the time of a decode in seconds. Raises TypeError or ValueError."""
    return between(value, _LEAST_S, _MOST_S)


def between(value: Any, least: float, most: float) -> float:
    """`value`, if it is a number from `least` to `most`. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    if not least <= value <= most:
        raise ValueError("out of range")
    return float(value)


def whole(value: Any) -> int:
    """`value`, if it is a whole number. Raises TypeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value

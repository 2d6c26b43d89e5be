"""What decodes cost and how often candidates are accepted, learned while running."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import truediv
from typing import Any

KEPT = 2  # weight, in measurements, of a value from an earlier run: machines and texts change
HOPE = 0.95  # a restored time is multiplied by this for each run that did not measure it, so that it is tried again,
MOST_HOPE = 0.8  # but not by less than this in all
TRUST = 0.1  # added to an acceptance rate that comes from another text
MOST_SLOWER = 1.5  # limit of a measurement, as a multiple of the mean
_FEW = 5  # measurements after which a mean is trusted
_LEAST_S, _MOST_S = 1e-7, 1e5  # plausible times: beyond, ratios of them overflow
_MOST = 2**31 - 1


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
    """A mean of times in seconds that is robust against single interruptions."""

    def add(self, value: float) -> None:
        """Add one measurement."""
        if self.n == 0:
            super().add(value)
        elif self.n == 1:  # the smaller of the first two: disturbances only make a decode slower
            self.n, self.value = 2, min(self.value, value)
        else:
            super().add(min(value, MOST_SLOWER * self.value))


class CostModel:
    """What decodes cost, in seconds, in one condition: one model at a time, or both concurrently."""

    def __init__(self, other: CostModel | None = None) -> None:
        """`other` is the other condition, from which times not measured in this one are inferred."""
        self._other = other
        self._target: dict[int, Time] = {}  # by tokens in the batch
        self._draft: dict[int, Time] = {}  # by threads
        self._kept: dict[tuple[str, int], tuple[float, int]] = {}  # restored values and their age in runs
        self._curve: list[float] = []  # T(1), T(2), … as far as asked for
        if other is not None:
            other._other = self

    @property
    def draft_s(self) -> float:
        """Time for one draft token on the fastest number of threads; 0 while unknown."""
        known = self._draft or (self._other._draft if self._other else {})
        return min((time.value for time in known.values()), default=0.0)

    def draft_threads(self, choices: Sequence[int]) -> int:
        """The number of threads to draft with: the fastest of `choices`, after three measurements of each."""
        untried = [n for n in choices if n not in self._draft or self._draft[n].n < 3]
        return untried[0] if untried else min(choices, key=lambda n: self._draft[n].value)

    def add_draft(self, seconds: float, n_threads: int = 1) -> None:
        """The draft decoded one token."""
        self._draft.setdefault(n_threads, Time()).add(seconds)

    def add_target(self, n: int, seconds: float) -> None:
        """The target decoded a batch of `n` tokens."""
        self._target.setdefault(n, Time()).add(seconds)
        self._forget_curves()

    def n_measured(self, n: int) -> int:
        """How many times a batch of `n` tokens was measured in this condition."""
        return self._target[n].n if n in self._target else 0

    def reliable_ms(self, n: int) -> dict[str, float | None]:
        """T(n) in ms, from at least five measurements in this run, and from earlier runs; None if unknown."""
        kept = self._kept.get(("target_s", n))
        is_known = self.n_measured(n) - (KEPT if kept else 0) >= _FEW
        now = 1000 * self._target[n].value if is_known else None
        return {"this_run": now, "earlier_runs": 1000 * kept[0] if kept else None}

    def target_s(self, n: int) -> float:
        """T(n), the time for a batch of `n` tokens; 0 while nothing is known."""
        while len(self._curve) < n:
            self._curve.append(self._estimate(len(self._curve) + 1))
        return self._curve[n - 1]

    def _estimate(self, n: int) -> float:
        """T(n), measured or inferred. T has steps, so interpolation would be unreliable.

        A size that was measured in the other condition is assumed to differ by the same ratio as the other sizes.
        Otherwise it is assumed to cost as much as the next smaller size: being optimistic, it will be tried.
        """
        if n == 1:
            return self._first()
        if n in self._target:
            return self._target[n].value
        theirs = self._other._target if self._other else {}
        return max(theirs[n].value * self._ratio(theirs) if n in theirs else 0.0, self.target_s(n - 1))

    def _first(self) -> float:
        """T(1). Not more than the time of any larger batch, so that a disturbed measurement is corrected."""
        if 1 in self._target and self._target[1].n >= _FEW:
            return self._target[1].value
        theirs = self._other._target if self._other else {}
        known = [time.value for time in self._target.values()]
        if 1 not in self._target and theirs:
            known.append(min(time.value for time in theirs.values()) * self._ratio(theirs))
        return min(known, default=0.0)

    def _ratio(self, theirs: dict[int, Time]) -> float:
        """How much slower the target is here than in the other condition."""
        logs = [math.log(self._target[n].value / theirs[n].value) for n in self._target if n in theirs]
        return math.exp(sum(logs) / len(logs)) if logs else 1.0

    def curve(self, n: int) -> list[float]:
        """T(1) to T(n), in seconds."""
        self.target_s(n)
        return self._curve[:n]

    def target_ms(self) -> dict[str, float]:
        """T(n) in ms for each n that was measured in this run and condition."""
        measured = [(n, time) for n, time in sorted(self._target.items()) if self._is_fresh("target_s", n, time)]
        return {str(n): 1000 * time.value for n, time in measured}

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON types: for each size or number of threads [seconds, age in runs]."""
        return {
            name: {
                str(n): [time.value, 0]
                if self._is_fresh(name, n, time)
                else [self._kept[name, n][0], self._kept[name, n][1] + 1]
                for n, time in sorted(times.items())
            }
            for name, times in self._times()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for name, times in self._times():
            for key, (value, age) in state[name].items():
                n, seconds = int(key), duration(value)
                if not 1 <= n <= _MOST or whole(age) < 0:
                    raise ValueError("not a number of tokens or threads, or not an age")
                self._kept[name, n] = seconds, min(age, _MOST)
                times[n] = Time(value=max(MOST_HOPE, HOPE ** min(age, _MOST)) * seconds, n=KEPT)
        self._forget_curves()

    def _times(self) -> list[tuple[str, dict[int, Time]]]:
        return [("target_s", self._target), ("draft_s", self._draft)]

    def _is_fresh(self, name: str, n: int, time: Time) -> bool:
        """Whether it was measured in this run."""
        return (name, n) not in self._kept or time.n > KEPT

    def _forget_curves(self) -> None:
        self._curve.clear()
        if self._other is not None:
            self._other._curve.clear()


class Calibration:
    """a(c): the probability that a candidate of confidence c is accepted, if all before it are.

    The confidence is the gap between the draft's top two logits. A histogram with exponential forgetting.
    """

    EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # between the bins
    PRIOR_WEIGHT = 4.0  # weight of the prior, in candidates per bin
    MEMORY = 0.98  # factor by which a bin's history is discounted for each new candidate
    RECENT = 0.08  # weight of the last candidate in the short mean, which detects changes of the text

    def __init__(self) -> None:
        # Typical for a small draft of the same family, for the gap in the middle of each bin.
        middles = [(low + high) / 2 for low, high in zip((0.0, *self.EDGES), (*self.EDGES, 8.0), strict=True)]
        self._begin([1 - 0.6 * math.exp(-gap / 1.5) for gap in middles], 0.7)

    def _begin(self, shares: Iterable[float], mean: float) -> None:
        self._accepted = [self.PRIOR_WEIGHT * share for share in shares]
        self._seen = [self.PRIOR_WEIGHT] * len(self._accepted)
        self._all = Mean(weight=0.01, value=mean, n=int(self.PRIOR_WEIGHT))
        self._recent = Mean(weight=self.RECENT, value=mean, n=int(self.PRIOR_WEIGHT))

    @property
    def mean(self) -> float:
        """The acceptance rate over all confidences."""
        return self._all.value

    def probability(self, confidence: float) -> float:
        """a(`confidence`)."""
        i = bisect_right(self.EDGES, confidence)
        return self._accepted[i] / self._seen[i]

    def probabilities(self) -> tuple[float, ...]:
        """a(c) for each bin, in the order of EDGES."""
        return tuple(map(truediv, self._accepted, self._seen))

    def add(self, confidence: float, accepted: bool) -> None:
        """Learn from a candidate, which was or would have been `accepted` or not."""
        i = bisect_right(self.EDGES, confidence)
        self._seen[i] = self.MEMORY * self._seen[i] + 1
        self._accepted[i] = self.MEMORY * self._accepted[i] + accepted
        self._all.add(float(accepted))
        self._recent.add(float(accepted))
        share = self._all.value
        deviation = math.sqrt(self.RECENT / 2 * share * (1 - share))  # of the short mean, if nothing has changed
        if abs(self._recent.value - share) > 3 * deviation:
            self._forget()

    def _forget(self) -> None:
        """The text has changed: discount what was seen before."""
        self._all = Mean(weight=0.01, value=self._recent.value, n=round(1 / self.RECENT))
        for i, seen in enumerate(self._seen):
            self._accepted[i] *= min(1.0, self.PRIOR_WEIGHT / seen)
            self._seen[i] = min(seen, self.PRIOR_WEIGHT)

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON types."""
        return {"edges": list(self.EDGES), "accepted": list(self.probabilities()), "mean": self.mean}

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        shares, mean = [between(share, 0, 1) for share in state["accepted"]], between(state["mean"], 0, 1)
        if state["edges"] != list(self.EDGES) or len(shares) != len(self._seen):
            raise ValueError("other bins")
        # Texts differ: the mean of the stored values and the prior, optimistic until this text has been observed.
        halves = [(share + prior) / 2 for share, prior in zip(shares, self.probabilities(), strict=True)]
        self._begin(halves, min(1.0, (mean + self.mean) / 2 + TRUST))


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

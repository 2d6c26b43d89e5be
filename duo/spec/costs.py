"""What decodes cost and how often candidates are accepted, learned while running."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import truediv
from typing import Any

from duo.config import MAX_BRANCHES, MAX_CANDIDATES, MAX_THREADS
from duo.spec.constants import DEFAULT, Assumed, PolicyConfig, assumed
from duo.spec.curves import interpolated, lowered, with_inferred

_LEAST_S, _MOST_S = 1e-7, 1e5  # plausible times: beyond, ratios of them overflow
# Smallest and largest batch of the target, number of the draft's threads, its batch, and its sequences.
_SIZES = {
    "target_s": (1, MAX_CANDIDATES + 1),
    "draft_s": (1, MAX_THREADS),
    "pair_s": (2, 2),
    "branch_s": (2, MAX_BRANCHES + 1),
}


class Mean:
    """A running mean that forgets: the first values have equal weight, later ones at least `weight`."""

    def __init__(self, weight: float = 0.05, value: float = 0.0, n: int = 0) -> None:
        """Starts with a `value` that counts as `n` values."""
        self._weight = weight
        self.n = n
        self.value = value

    def add(self, value: float) -> None:
        """Add one value."""
        self.n += 1
        self.value += max(self._weight, 1 / self.n) * (value - self.value)


class Time(Mean):
    """A mean of times in seconds, and its relative spread.

    A time that is far too long is not used: something has interrupted the decode. Several of them in succession, or one
    that is far too short, are the new mean: the machine has changed, or was disturbed when the old one was measured.
    """

    def __init__(self, value: float = 0.0, n: int = 0, spread: float = DEFAULT.spread) -> None:
        """Starts with a `value` that counts as `n` measurements."""
        super().__init__(value=value, n=n)
        self.spread = spread  # standard deviation of one measurement, relative to the mean
        self.is_kept = n > 0  # from an earlier run, and not measured in this one
        self._outliers: list[float] = []  # the last times, if they were far too long
        self.begin()

    def begin(self) -> None:
        """A text begins."""
        self.before = self.value  # as known at its beginning; 0: not comparable
        self.here = Mean(weight=0.0)  # in this text

    def doubted(self, doubt: float) -> float:
        """The mean, plus `doubt` times its standard deviation."""
        return self.value * (1 + doubt * self.spread * math.sqrt(max(self._weight / 2, 1 / max(1, self.n))))

    def add(self, value: float) -> None:
        """Add one measurement."""
        most = DEFAULT.most_slower
        if self.n and value > most * self.value and len(self._outliers) + 1 < DEFAULT.outliers:
            self._outliers.append(value)
            return
        if self.n and not self.value / most <= value <= most * self.value:
            self.n, self.value, self.here = 0, 0.0, Mean(weight=0.0)
            value = min(value, *self._outliers, math.inf)
        self._outliers.clear()
        self.here.add(value)
        if self.n == 1 and not self.is_kept:  # the smaller of the first two: disturbances only make a decode slower
            self.n, self.value = 2, min(self.value, value)
        else:
            if self.n:
                variance, weight = self.spread**2, max(self._weight, 1 / (self.n + 2))
                self.spread = math.sqrt(variance + weight * ((value / self.value - 1) ** 2 - variance))
            super().add(value)
        self.is_kept = False


class CostModel:
    """What decodes cost, in seconds, in one condition: one model at a time, or both concurrently; on some free cores.

    What was not measured in this condition is inferred from its `relatives`, or assumed. `doubt` is a number of
    standard deviations: with 1, all that is uncertain costs that much more than expected, with -1 less.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        # The other condition on these cores, then this one on others: how much slower than these, until measured.
        self.relatives: list[tuple[CostModel, Assumed]] = []
        self._config = config
        self._target: dict[int, Time] = {}  # by tokens in the batch
        self._draft: dict[int, Time] = {}  # by threads
        self._pair: dict[int, Time] = {}  # of the draft for two tokens in one decode: {2: …}
        self._branched: dict[int, Time] = {}  # of the draft too, by sequences in one decode, from 2 on
        self._curves: dict[float, list[float]] = {}  # by doubt
        self._drawn: dict[int, tuple[float, float]] = {}  # T(n) of which they were made, without doubt and with
        self.guess_s = 0.0  # the draft's time for one token, as inferred from others, until it is measured
        self.was_wrong = False  # whether T(n > 1) of an earlier run was, since a text began
        self.is_doubted = False  # whether T(1) is from an earlier run whose other times have turned out to be wrong

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
        known = ((other, slower) for other, slower in self.relatives if other._draft or other.guess_s)
        return self.guess_s or next((other.draft_time(doubt) * assumed(slower, doubt) for other, slower in known), 0.0)

    @property
    def knows_pair(self) -> bool:
        """Whether the draft's time for two tokens in one decode was measured."""
        return bool(self._pair)

    def pair_time(self, doubt: float = 0.0) -> float:
        """The draft's time for a decode of two tokens; at least that for one."""
        one_s = self.draft_time(doubt)
        return max(one_s, self._pair[2].doubted(doubt) if self._pair else assumed(self._config.pair, doubt) * one_s)

    def _branches_time(self, doubt: float, n: int) -> float:
        """t_d of `n` sequences: from what was measured here or, relative to one sequence, in another condition."""
        if not (one_s := self.draft_time(doubt)):
            return 0.0
        known = {1: one_s} | {size: max(one_s, time.doubted(doubt)) for size, time in self._branched.items()}
        for other, _ in self.relatives:
            theirs = other.draft_time(0.0)
            known = with_inferred(known, {i: time.value / theirs * one_s for i, time in other._branched.items()})
        return interpolated(lowered(known), n, self._config)[n - 1]

    def draft_curve(self, n: int) -> list[float]:
        """t_d of 1 to `n` sequences; empty unless it was measured for several, in this condition or another."""
        is_known = self._branched or any(other._branched for other, _ in self.relatives)
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

    def add_pair(self, seconds: float) -> None:
        """The draft decoded two tokens at once."""
        self._pair.setdefault(2, Time()).add(seconds)

    def add_target(self, n: int, seconds: float) -> None:
        """The target decoded a batch of `n` tokens.

        If this contradicts what was known, the machine has changed, and all other times with it. But if that was known
        from an earlier run and n > 1, the curve may be wrong: it is forgotten.
        """
        time = self._target.setdefault(n, Time())
        was_kept, n_before, before_s = time.is_kept, time.n, time.value
        time.add(seconds)
        if (was_kept or n_before >= DEFAULT.few) and abs(math.log(time.value / before_s)) > math.log(
            DEFAULT.most_slower
        ):
            if was_kept and n > 1:
                self._forget_kept()
            else:
                self._scale(time.value / before_s, time)
        self.is_doubted = self.is_doubted and n > 1
        now = time.value, time.doubted(1.0)
        if any(abs(a - b) > DEFAULT.noticeable * a for a, b in zip(now, self._drawn.get(n, (0.0, 0.0)), strict=True)):
            self._drawn[n] = now
            self._follow()
            self.forget_curves()

    def _follow(self) -> None:
        """If T(n) is longer or shorter than when the text began, so is that of sizes that the text does not use.

        By at least five decodes. If the text has decodes of one token and of several, only as far as both have changed.
        """
        used = {n: time for n, time in self._target.items() if time.here.n and time.before}
        if sum(time.here.n for time in used.values()) < DEFAULT.few:
            return
        groups = [time for n, time in used.items() if n == 1], [time for n, time in used.items() if n > 1]
        changes = [
            sum(math.log(time.value / time.before) * time.here.n for time in group) / sum(time.here.n for time in group)
            for group in groups
            if group
        ]
        drift = math.exp(min(changes, key=abs))
        drift = drift if abs(drift - 1) > DEFAULT.spread else 1.0
        unused = [other for other, _ in self.relatives[:1] if not any(t.here.n for t in other._target.values())]
        for time in (time for costs in (self, *unused) for time in costs._target.values()):
            if time.before and not time.here.n:
                time.value = time.before * drift

    def _forget_kept(self) -> None:
        """Forget T(n > 1) of earlier runs, and do not compare with them."""
        self.was_wrong, self.is_doubted = True, 1 in self._target and self._target[1].is_kept
        for costs in (self, *(other for other, _ in self.relatives[:1])):
            costs._target = {n: time for n, time in costs._target.items() if n == 1 or not time.is_kept}
            for time in (time for n, time in costs._target.items() if n > 1):
                time.before = 0.0

    def _scale(self, factor: float, known: Time) -> None:
        """Multiply all times but `known`."""
        for costs in (self, *(other for other, _ in self.relatives[:1])):
            for time in (time for _, times in costs._times() for time in times.values() if time is not known):
                time.value *= factor

    def begin(self) -> None:
        """A text begins."""
        self.was_wrong = False
        for time in self._target.values():
            time.begin()

    def measured_s(self, n: int) -> float:
        """T(n) as measured in this condition; 0 if it was not. Any thread may call it."""
        time = self._target.get(n)
        return time.value if time is not None else 0.0

    def kept_s(self, n: int) -> float:
        """T(n) from an earlier text or run; 0 if unknown."""
        return self._target[n].before if n in self._target else 0.0

    def n_measured(self, n: int) -> int:
        """How many times a batch of `n` tokens was measured in this condition."""
        return self._target[n].n if n in self._target else 0

    @property
    def is_measured(self) -> bool:
        """Whether any decode of the target was measured in this condition."""
        return bool(self._target)

    def is_fresh(self, n: int) -> bool:
        """Whether a batch of `n` tokens was measured in this run."""
        return n in self._target and not self._target[n].is_kept

    def n_affordable(self, credit_s: float) -> int:
        """The largest batch that costs at most `credit_s` more than one token, even if T(n) is linear where unknown.

        At least the largest that was measured.
        """
        most = max((n for times in (self._target, *(o._target for o, _ in self.relatives)) for n in times), default=1)
        each_s = self.target_s(most) / most
        return max(most, int((credit_s + self.target_s(1)) / each_s)) if each_s else most

    def alone_here_s(self) -> float:
        """T(1) in this text: as measured, or by its other decodes, relative to those known before it; 0: unknown."""
        if 1 in self._target and self._target[1].here.n >= DEFAULT.few:
            return self._target[1].here.value
        known = [time for time in self._target.values() if time.here.n and time.before]
        if 1 not in self._target or not self._target[1].before or sum(time.here.n for time in known) < DEFAULT.few:
            return 0.0
        ratios = [(time.here.value / time.before, time.here.n) for time in known]
        return self._target[1].before * sum(ratio * n for ratio, n in ratios) / sum(n for _, n in ratios)

    def target_s(self, n: int) -> float:
        """T(n), the time for a batch of `n` tokens; 0 while nothing is known."""
        return self.curve(n)[-1]

    def curve(self, n: int, doubt: float = 0.0) -> list[float]:
        """T(1) to T(n), in seconds; linear between the sizes that were measured in this condition or another."""
        found = self._curves.get(doubt, [])
        if len(found) < n:
            found = self._curves[doubt] = self._interpolated(n, doubt)
        return found[:n]

    def _interpolated(self, n: int, doubt: float) -> list[float]:
        known = {size: time.doubted(doubt) for size, time in self._target.items()}
        for other, slower in self.relatives:
            # How much slower the target is here.
            logs = [
                math.log(time.value / other._target[i].value) for i, time in self._target.items() if i in other._target
            ]
            ratio = math.exp(sum(logs) / len(logs)) if logs else assumed(slower, doubt)
            known = with_inferred(known, {i: time.doubted(doubt) * ratio for i, time in other._target.items()})
        return interpolated(lowered(known), n, self._config, doubt) if known else [0.0] * n

    def target_ms(self) -> dict[int, float]:
        """T(n) in ms for each n that was measured in this run and condition."""
        return {n: 1000 * time.value for n, time in sorted(self._target.items()) if not time.is_kept}

    def state(self) -> dict[str, Any]:
        """What was measured, as JSON types: for each size or number of threads [seconds, relative spread]."""
        return {name: _state(times) for name, times in self._times()}

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for name, times in self._times():
            least, most = _SIZES[name]
            for key, (value, spread) in state.get(name, {}).items():
                n, seconds = int(key), duration(value)
                if not least <= n <= most:
                    raise ValueError("not a number of tokens, threads or sequences")
                times[n] = Time(seconds, DEFAULT.kept, between(spread, 0, 1))
        self.forget_curves()

    def _times(self) -> list[tuple[str, dict[int, Time]]]:
        tables = self._target, self._draft, self._pair, self._branched
        return list(zip(_SIZES, tables, strict=True))

    def forget_curves(self) -> None:
        """Something that the curves follow from has changed."""
        for costs in (self, *(other for other, _ in self.relatives)):
            costs._curves.clear()


def _state(times: dict[int, Time]) -> dict[str, Any]:
    return {str(n): [time.value, time.spread] for n, time in sorted(times.items())}


class Calibration:
    """a(c): the probability that a candidate of confidence c is accepted, if all before it are.

    The confidence is the gap between the draft's top two logits. A histogram with exponential forgetting.
    """

    EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # between the bins

    def __init__(self) -> None:
        # Typical for a small draft of the same family, for the gap in the middle of each bin.
        middles = [(low + high) / 2 for low, high in zip((0.0, *self.EDGES), (*self.EDGES, 8.0), strict=True)]
        self._begin([1 - 0.6 * math.exp(-gap / 1.5) for gap in middles], 0.7, DEFAULT.shares)
        self._begin_ranks(DEFAULT.ranks)
        self.n_scored = 0  # candidates, in this run and earlier ones

    def _begin(self, accepted: Iterable[float], mean: float, shares: Iterable[float], n: int = 4) -> None:
        self._accepted = [DEFAULT.prior_weight * share for share in accepted]
        self._seen = [DEFAULT.prior_weight] * len(self._accepted)
        self._texts = Mean(weight=1 / DEFAULT.texts, value=mean, n=n)
        self._all = Mean(weight=1 - DEFAULT.memory, value=mean, n=n)
        self._shares = [Mean(weight=1 - DEFAULT.memory, value=share, n=n) for share in shares]

    def begin(self) -> None:
        """A text begins, with the acceptance of all texts: the last one may have been easy or difficult."""
        self._all = Mean(weight=1 - DEFAULT.memory, value=self._texts.value, n=min(self._all.n, DEFAULT.kept_scores))

    def doubt(self, share: float, n: int) -> bool:
        """If `n` new candidates of which this `share` is right contradict earlier texts, those count for little.

        Returns whether they are much better.
        """
        if not self.n_scored:
            return False
        deviation = (share - self.mean) / math.hypot(self.sd, 0.5 / math.sqrt(n))
        if abs(deviation) > DEFAULT.surprise:
            self._all.n = min(self._all.n, 2)
        return deviation > DEFAULT.surprise

    def _begin_ranks(self, shares: Iterable[float], n: int = 4) -> None:
        self._ranks = [Mean(weight=1 - DEFAULT.memory, value=share, n=n) for share in shares]

    @property
    def mean(self) -> float:
        """The acceptance rate over all confidences, of late."""
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

    def chances(self, mean: float) -> list[tuple[float, float]]:
        """For each bin, the share of the candidates in it and a(c), adjusted to a `mean` of a(c) over all of them."""
        found = [(share.value, chance) for share, chance in zip(self._shares, self.probabilities(), strict=True)]
        now = sum(share * chance for share, chance in found)
        if mean <= now:
            return [(share, chance * mean / (now or 1.0)) for share, chance in found]
        return [(share, 1 - (1 - chance) * (1 - mean) / (1 - now)) for share, chance in found]

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
        self.add_share(float(accepted))
        for j, share in enumerate(self._shares):
            share.add(float(i == j))

    def add_share(self, share: float, n: int = 1) -> None:
        """Learn that of `n` candidates this `share` was accepted, and nothing about their confidence."""
        self.n_scored += n
        for _ in range(n):
            self._all.add(share)
            self._texts.add(share)

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON types."""
        found = {"edges": list(self.EDGES), "accepted": list(self.probabilities()), "mean": self._texts.value}
        found["scored"] = min(self.n_scored, DEFAULT.texts)
        return {**found, "shares": [share.value for share in self._shares], "ranks": list(self.ranks)}

    def restore(self, state: dict[str, Any]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        accepted, shares, ranks = ([between(x, 0, 1) for x in state[name]] for name in ("accepted", "shares", "ranks"))
        if state["edges"] != list(self.EDGES) or not len(accepted) == len(shares) == len(self._seen):
            raise ValueError("other bins")
        if not math.isclose(sum(shares), 1, abs_tol=0.01):
            raise ValueError("not shares of a whole")
        self.n_scored = int(between(state["scored"], 1, DEFAULT.texts))
        n = min(self.n_scored, DEFAULT.kept_scores)
        self._begin(accepted, between(state["mean"], 0, 1), shares, n)
        self._texts.n = self.n_scored
        if len(ranks) == len(self._ranks):
            self._begin_ranks(ranks, n)


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

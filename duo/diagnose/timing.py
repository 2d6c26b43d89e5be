"""Times of decodes that other programs have not disturbed: repeated in rounds, and checked against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from duo.errors import DuoError

ROUNDS = 3  # of all measurements, at least: the speed of a machine changes within seconds
LEAST = 3  # times of which a median is taken
_ERROR = 0.1  # largest standard error of a median, relative to it
_LESS = 0.85  # factor below which what should take at least as long contradicts it: noise is less
_TYPICAL = 5  # tokens of the target's batch while a draft with branches is timed
_MAX_AGAIN = 3  # how often times that contradict each other are measured again


class MeasurementError(DuoError):
    """No reliable times could be measured."""


@dataclass(slots=True, eq=False)
class Series:
    """The times of one decode, in seconds, repeated."""

    what: str  # for people
    pending: list[float] = field(default_factory=list)  # not known to be undisturbed yet
    times: list[float] = field(default_factory=list)  # undisturbed
    disturbed: list[float] = field(default_factory=list)
    n_again: int = 0  # how often it was measured again

    @property
    def seconds(self) -> float:
        """The median; if all were disturbed, which makes a decode longer, the lower quartile."""
        return float(np.median(self.times) if self.times else np.percentile(self.disturbed, 25))

    @property
    def is_known(self) -> bool:
        """Whether there is any time."""
        return bool(self.times or self.disturbed)

    @property
    def is_settled(self) -> bool:
        """Whether there are enough times for their spread."""
        if len(self.times) < LEAST:
            return False
        low, middle = np.percentile(self.times, (25, 50))  # what disturbs makes only the others longer
        return bool(2 * (middle - low) / math.sqrt(len(self.times)) <= _ERROR * middle)

    def judge(self, *, disturbed: bool) -> None:
        """Keep the pending times; those that are `disturbed` apart."""
        found, self.pending = self.pending, []  # a concurrent draft may append meanwhile
        if disturbed:
            self.disturbed += found
        else:
            self.times += found

    def again(self) -> None:
        """Forget all times, which are as doubtful as disturbed ones."""
        self.disturbed += self.times
        self.times.clear()
        self.n_again += 1


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Decodes that are timed together: of one model or, concurrently, of both."""

    threads: tuple[int, int]  # of target and draft; 0: it does not run
    target: dict[int, Series] = field(default_factory=dict)  # by tokens in the batch
    draft: Series | None = None
    n_sequences: int = 1  # of the draft
    n_tokens: int = 1  # in each of them

    @property
    def series(self) -> Iterator[Series]:
        """All of them."""
        yield from self.target.values()
        if self.draft is not None:
            yield self.draft

    @property
    def is_settled(self) -> bool:
        """Whether nothing needs to be measured again."""
        return all(series.is_settled for series in self.series)

    @property
    def is_known(self) -> bool:
        """Whether the target was timed with one token, and the draft, as far as they run."""
        needed = [self.draft, *list(self.target.values())[:1]]
        return all(series.is_known for series in needed if series is not None)

    @property
    def times(self) -> dict[int, float]:
        """The target's times by tokens in the batch; empty without that of one token."""
        return {n: series.seconds for n, series in self.target.items() if series.is_known} if self.is_known else {}

    def curve(self, sizes: Sequence[int]) -> list[float]:
        """The target's times by `sizes`, linear between those that were measured."""
        known = sorted(self.target)
        return [float(s) for s in np.interp(sizes, known, [self.target[n].seconds for n in known])]


def target_group(n_threads: int, sizes: Sequence[int]) -> Group:
    """The target alone."""
    name = f"the target on {n_threads} threads"
    return Group((n_threads, 0), {n: Series(f"{name}, {n} tokens at once") for n in sizes})


def draft_group(n_threads: int, n_tokens: int = 1) -> Group:
    """The draft alone, decoding so many tokens at once."""
    several = f", {n_tokens} tokens at once" if n_tokens > 1 else ""
    return Group((0, n_threads), draft=Series(f"the draft on {n_threads} threads{several}"), n_tokens=n_tokens)


def group_of_both(split: tuple[int, int], sizes: Sequence[int]) -> Group:
    """Both concurrently."""
    name = f"both on {split[0]} + {split[1]} threads"
    return Group(split, {n: Series(f"{name}, {n} tokens at once") for n in sizes}, Series(f"{name}, the draft"))


def group_with_branches(split: tuple[int, int], n_sequences: int) -> Group:
    """Both concurrently, with a draft that decodes `n_sequences` at once; the target's times are of no interest."""
    name = f"both on {split[0]} + {split[1]} threads, the draft in {n_sequences} sequences"
    return Group(split, {_TYPICAL: Series(name)}, Series(name), n_sequences)


def contradictions(groups: Sequence[Group]) -> list[tuple[Series, Series]]:
    """Settled series that contradict each other: (the one that should take less, the one that should take more).

    No batch is faster than one token, and no decode is faster while the other model runs, too. Of larger batches, a
    faster one is possible (kernels for batches of four): it is doubted once only.
    """
    alone = {group.threads: group for group in groups if 0 in group.threads and group.n_tokens == 1}
    pairs: list[tuple[Series, Series]] = []
    for group in groups:
        sizes = sorted(group.target)
        pairs += [(group.target[sizes[0]], group.target[n]) for n in sizes[1:]]
        for low, high in pairwise(sizes[1:]):
            if not group.target[high].n_again:
                pairs.append((group.target[low], group.target[high]))
        n_target, n_draft = group.threads
        if group is alone.get(group.threads):
            continue
        if (target := alone.get((n_target, 0))) is not None:
            pairs += [(target.target[n], series) for n, series in group.target.items() if n in target.target]
        draft = alone.get((0, n_draft))
        if draft is not None and draft.draft is not None and group.draft is not None:
            pairs.append((draft.draft, group.draft))
    return [(less, more) for less, more in pairs if more.seconds < _LESS * less.seconds]


def doubt(groups: Sequence[Group]) -> bool:
    """Let what contradicts each other be measured again. Returns whether anything does.

    Raises MeasurementError if that was done often enough.
    """
    found = contradictions(groups)
    for less, more in found:
        if more.n_again >= _MAX_AGAIN:
            raise MeasurementError(
                f"the times contradict each other, even when measured again ({less.what}: {1000 * less.seconds:.2f} "
                f"ms; {more.what}: {1000 * more.seconds:.2f} ms): try again when the machine is idle"
            )
    for series in {id(each): each for pair in found for each in pair}.values():
        series.again()
    return bool(found)

"""Likely outcomes of a verification: where the target's tokens may leave the draft's chain, and with which token.

While the target verifies candidates, the draft may continue the likely outcomes, each as a *branch*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_CHANCE = 0.01  # of an outcome that is continued
MOST_DEEP = 31  # tokens in a branch


class RankedOutcome(NamedTuple):
    """The draft is wrong at `position`, counted from the first candidate; right is its alternative of this `rank`.

    The position after the last candidate is included.
    """

    chance: float
    position: int
    rank: int


def likely(chances: Sequence[float], ranks: Sequence[float], n: int) -> list[RankedOutcome]:
    """The `n` most likely outcomes, best first, without those that hardly ever come true.

    `chances[i]`: the probability that the drafted token at position i is right if all before it are. `ranks[r]`: the
    probability that, where one is wrong, the target's token is its alternative of rank r.
    """
    found, survival = list[RankedOutcome](), 1.0
    for position, chance in enumerate(chances):
        wrong = survival * (1 - chance)
        found += [
            RankedOutcome(wrong * share, position, rank)
            for rank, share in enumerate(ranks)
            if wrong * share >= LEAST_CHANCE
        ]
        survival *= chance
    return sorted(found, key=lambda outcome: (-outcome.chance, outcome.position, outcome.rank))[:n]

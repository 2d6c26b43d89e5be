"""Noise: random numbers that are a function of what they are for, so that nobody has to pass them on.

A counter-based generator in the manner of splitmix64 (Steele, Lea and Flood 2014): the seed, the purpose, the position
in the text and the token id are mixed, and that is all there is. Draft and target can so use the same numbers, and
which of them looks first, or twice, makes no difference.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from duo.spec.types import Floats, TokenIds

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Purpose(IntEnum):
    """What the numbers are for. Those for two purposes are independent of each other."""

    OWN = 1  # the token that the target writes on its own account; coupled, also what the draft guesses it to be
    DRAFT = 2  # rejection sampling: the draft's guess,
    COIN = 3  # whether it is accepted,
    RESIDUAL = 4  # and the token in its place if it is not
    REFUSED = 5  # rejection sampling: the token in place of one that the grammar refuses


def uniforms(seed: int, purpose: Purpose, position: int, ids: TokenIds) -> Floats:
    """For each token of ids `[n]` a number in (0, 1), of 53 bits; `[n]` float64."""
    state = _mix(_mix(_mix(seed & _MASK) + purpose * _STEP & _MASK) + position * _STEP & _MASK)
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP) + np.uint64(state)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    # Without 0, so that no logarithm is infinite; 1 does not come.
    numbers: Floats = np.maximum(mixed >> np.uint64(11), np.uint64(1)).astype(np.float64) * 2.0**-53
    return numbers


def uniform(seed: int, purpose: Purpose, position: int) -> float:
    """One number in (0, 1)."""
    return float(uniforms(seed, purpose, position, np.zeros(1, np.int64))[0])


def gumbel(seed: int, purpose: Purpose, position: int, ids: TokenIds) -> Floats:
    """For each token of ids `[n]` a standard Gumbel number; `[n]` float64.

    The arg-max of log p + Gumbel noise is a sample of p (Gumbel 1954; Maddison, Tarlow and Minka 2014).
    """
    noise: Floats = -np.log(-np.log(uniforms(seed, purpose, position, ids)))
    return noise


def _mix(state: int) -> int:
    state = (state ^ state >> 30) * _FIRST & _MASK
    state = (state ^ state >> 27) * _SECOND & _MASK
    return state ^ state >> 31

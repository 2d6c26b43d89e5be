"""Stateless random numbers: a hash of the seed, the purpose, the position in the text and the token id.

A counter-based generator after splitmix64 (Steele, Lea and Flood 2014). Draft and target obtain the same numbers
without communicating, in any order and any number of times.
"""

from enum import IntEnum

import numpy as np

from duo.speculation.types import Floats, TokenIds

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_FEW = 32  # ids whose numbers are computed one by one
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a number is used for. Numbers for different purposes are independent."""

    OWN = 1  # the target's own token; in coupled sampling also the draft's prediction of it
    DRAFT = 2  # rejection sampling: the draft's draw
    COIN = 3  # rejection sampling: whether it is accepted
    RESIDUAL = 4  # rejection sampling: the token that replaces a rejected one


def uniforms(seed: int, purpose: Purpose, position: int, ids: TokenIds) -> Floats:
    """Uniform numbers in (0, 1) with 53 bits for the tokens `ids` `[n]`; `[n]` float64."""
    state = _mix(_mix(_mix(seed & _MASK) + purpose * _STEP & _MASK) + position * _STEP & _MASK)
    if len(ids) <= _FEW:  # NumPy's first calls after a decode take longer than all of this
        few = [_mix((token + 1) * _STEP + state & _MASK) >> 11 or 1 for token in ids.tolist()]
        return np.array(few, np.float64) * 2.0**-53
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP) + np.uint64(state)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    # 0 is excluded so that no logarithm is infinite; 1 cannot occur.
    numbers: Floats = np.maximum(mixed >> np.uint64(11), np.uint64(1)).astype(np.float64) * 2.0**-53
    return numbers


def uniform(seed: int, purpose: Purpose, position: int) -> float:
    """One uniform number in (0, 1)."""
    return float(uniforms(seed, purpose, position, np.zeros(1, np.int64))[0])


def gumbel(seed: int, purpose: Purpose, position: int, ids: TokenIds) -> Floats:
    """Standard Gumbel noise for the tokens `ids` `[n]`; `[n]` float64.

    The arg-max of log p + Gumbel noise is a sample of p (Gumbel 1954; Maddison, Tarlow and Minka 2014).
    """
    noise: Floats = -np.log(-np.log(uniforms(seed, purpose, position, ids)))
    return noise


def _mix(state: int) -> int:
    state = (state ^ state >> 30) * _FIRST & _MASK
    state = (state ^ state >> 27) * _SECOND & _MASK
    return state ^ state >> 31

"""Cost curves: what n tokens in one decode take, from the sizes that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from duo.spec.constants import PolicyConfig, assumed


def interpolated(known: Mapping[int, float], n: int, config: PolicyConfig, doubt: float = 0.0) -> list[float]:
    """Seconds for 1 to at least `n` tokens, linear between the sizes in `known`, of which there is at least one.

    Beyond them, each token adds what `config` assumes with this `doubt` (see CostModel).
    """
    known, second, growth = dict(known), assumed(config.second, doubt), assumed(config.growth, doubt)
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


def lowered(known: Mapping[int, float]) -> dict[int, float]:
    """Of several tokens, none takes longer than a larger batch: it could be padded to that. T(1) is as measured."""
    found, least = {}, float("inf")
    for size in sorted(known, reverse=True):
        least = min(least, known[size])
        found[size] = least if size > 1 else known[1]
    return found


def with_inferred(own: Mapping[int, float], inferred: Mapping[int, float]) -> dict[int, float]:
    """`own` times, and for other sizes `inferred` ones, which take no less than smaller batches of `own`."""
    found = {n: max([seconds, *(own[m] for m in own if m < n)]) for n, seconds in inferred.items() if n not in own}
    return found | dict(own)

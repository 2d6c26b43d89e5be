"""Cost curves: what n tokens in one decode take, from the sizes that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from duo.spec.constants import PolicyConfig


def interpolated(known: Mapping[int, float], n: int, config: PolicyConfig) -> list[float]:
    """Seconds for 1 to at least `n` tokens, linear between the sizes in `known`, of which there is at least one.

    Beyond them each token adds what `config` assumes. Never less for more tokens.
    """
    known = dict(known)
    least = min(known)
    first = known.setdefault(1, known[least] / (1 + config.second + config.growth * (least - 2)))
    if max(known) == 1:
        known[2] = first * (1 + config.second)
    if (most := max(known)) < n:
        known[n] = known[most] + (n - most) * config.growth * first
    found: list[float] = []
    for low, high in pairwise(sorted(known)):
        step = (known[high] - known[low]) / (high - low)
        found += [known[low] + i * step for i in range(high - low)]
    return [*found, known[max(known)]]


def increasing(known: Mapping[int, float], n_measured: Mapping[int, int]) -> dict[int, float]:
    """No larger batch takes less: times that contradict this are replaced by their mean (Ayer et al. 1955).

    Weighted so that the one measured most often counts most: it may be the only right one.
    """
    pools: list[tuple[float, float, list[int]]] = []  # weight, seconds, sizes
    for size in sorted(known):
        weight, mean, sizes = float(max(1, n_measured.get(size, 0)) ** 2), known[size], [size]
        while pools and pools[-1][1] > mean:
            before, seconds, smaller = pools.pop()
            mean = (before * seconds + weight * mean) / (before + weight)
            weight, sizes = before + weight, smaller + sizes
        pools.append((weight, mean, sizes))
    return {size: mean for _, mean, sizes in pools for size in sizes}

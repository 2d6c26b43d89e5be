"""Medians, speed-ups and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_LEAST_PAIRS = 3  # for an interval
_SHARE = 0.95  # confidence level
_HALVINGS = 60  # of the bisection


class Range(NamedTuple):
    """A figure and its range; None where there are too few runs for one."""

    middle: float
    low: float | None
    high: float | None


def middle_and_quartiles(values: Sequence[float]) -> Range | None:
    """The median, with quartiles for more than one value; None without values."""
    if not values:
        return None
    low, middle, high = (float(quartile) for quartile in np.percentile(values, (25, 50, 75)))
    return Range(middle, low, high) if len(values) > 1 else Range(middle, None, None)


def speed_up(ratios: Sequence[float]) -> Range | None:
    """The geometric mean of ratios of runs of the same round, with its 95 % interval; None without ratios.

    The interval is Student's t interval of the mean of the logarithms, which is valid for few pairs too.
    """
    if not ratios:
        return None
    logs = np.log(ratios)
    middle = math.exp(logs.mean())
    if len(ratios) < _LEAST_PAIRS:
        return Range(middle, None, None)
    reach = student_quantile(len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return Range(middle, middle * math.exp(-reach), middle * math.exp(reach))


def student_quantile(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t distribution with `freedom` degrees of freedom, by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        low, high = (angle, high) if _student_share(angle, freedom) < _SHARE else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _student_share(angle: float, freedom: int) -> float:
    """P(|t| < √freedom · tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * i / (i + 1)
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if odd else share

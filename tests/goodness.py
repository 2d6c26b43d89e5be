"""Goodness-of-fit tests."""

import math

import numpy as np

from duo.speculation.types import Floats, TokenIds

LEAST = 5.0  # expected draws in a cell


def chi_square(counts: TokenIds, probabilities: Floats) -> float:
    """The p-value of `counts` `[n]` under `probabilities` `[n]` (Pearson's test).

    Cells with fewer than LEAST expected draws are merged. 0 if something was drawn that has no probability.
    """
    if counts[probabilities <= 0].any():
        return 0.0
    expected = probabilities * counts.sum()
    order = np.argsort(-expected, kind="stable")
    expected, observed = expected[order], counts[order].astype(np.float64)
    n = int(np.count_nonzero(expected >= LEAST))
    while n and expected[n:].sum() < LEAST and n < len(expected):
        n -= 1  # the rest would not make a cell of its own
    cells = np.append(expected[:n], expected[n:].sum()), np.append(observed[:n], observed[n:].sum())
    used = cells[0] > 0
    deviation = float((((cells[1] - cells[0]) ** 2)[used] / cells[0][used]).sum())
    return chi_square_tail(deviation, int(np.count_nonzero(used)) - 1)


def chi_square_tail(value: float, n_free: int) -> float:
    """The probability that a chi-square number of `n_free` degrees of freedom is larger (Wilson and Hilferty 1931)."""
    if n_free < 1:
        return 1.0
    part = 2 / (9 * n_free)
    return math.erfc(((value / n_free) ** (1 / 3) - 1 + part) / math.sqrt(2 * part)) / 2

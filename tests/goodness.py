"""Goodness-of-fit tests."""

import math

import numpy as np

from duo.spec.types import Floats, TokenIds

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


def total_variation(counts: TokenIds, probabilities: Floats) -> float:
    """Half the sum of the absolute differences between the shares of `counts` `[n]` and `probabilities` `[n]`."""
    return float(np.abs(counts / counts.sum() - probabilities).sum() / 2)


def variation_bound(probabilities: Floats, n: int, doubt: float = 1e-6) -> float:
    """A bound that the total variation of `n` draws from `probabilities` exceeds with probability `doubt` at most.

    Its mean is at most half the sum of the cells' standard deviations, and one draw moves it by at most 1/n (McDiarmid
    1989).
    """
    mean = np.sqrt(probabilities * (1 - probabilities) / n).sum() / 2
    return float(mean + math.sqrt(math.log(1 / doubt) / (2 * n)))

"""Sampling filters with the semantics of llama.cpp (src/llama-sampler.cpp).

Each takes the ids `[n]` int64, ascending, and the logits `[n]` of the remaining tokens, and returns those it keeps, in
the same order. Every filter keeps at least one.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from duo.speculation.types import Logits, TokenIds

Tokens = tuple[TokenIds, Logits]

_ROWS = 64  # logits per maximum in the search for the largest
_FIRST_TRY = 256  # number of the largest logits that top-p sorts first


def bias(ids: TokenIds, logits: Logits, biases: Sequence[tuple[int, float]]) -> Tokens:
    """Add to the logits of single tokens, if they are among `ids`."""
    changed = logits.copy()
    for token, value in biases:
        i = ids.searchsorted(token)
        if i < len(ids) and ids[i] == token:
            changed[i] += value
    return ids, changed


def penalties(
    ids: TokenIds, logits: Logits, recent: Sequence[int], *, repeat: float, frequency: float, presence: float
) -> Tokens:
    """Make the tokens of `recent` less likely (Keskar et al. 2019, and OpenAI's two penalties)."""
    counted = Counter(recent)
    tokens, counts = np.array([*counted], np.int64), np.array([*counted.values()])
    at = ids.searchsorted(tokens)
    found = at < len(ids)
    found[found] = ids[at[found]] == tokens[found]
    at, counts = at[found], counts[found]
    changed = logits.copy()
    old = changed[at]
    changed[at] = np.where(old <= 0, old * repeat, old / repeat) - counts * frequency - presence
    return ids, changed


def top_k(ids: TokenIds, logits: Logits, k: int) -> Tokens:
    """The `k` largest logits (Fan et al. 2018); all if k is 0. Among equal logits the lowest ids are kept."""
    if k <= 0 or k >= len(ids):
        return ids, logits
    keep = _largest(logits, k)
    return ids[keep], logits[keep]


def top_p(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """The most likely tokens whose probabilities sum to `p` or more (Holtzman et al. 2020)."""
    if p >= 1:
        return ids, logits
    weights = np.exp(logits - logits.max())
    enough = p * np.add.reduce(weights, dtype=np.float64)
    n = _FIRST_TRY
    while True:
        # Sorting a large vocabulary takes longer than everything else.
        order = _largest(logits, n)
        order = order[(-logits[order]).argsort(kind="stable")]
        reached = bisect_left(list(accumulate(weights[order].tolist())), enough)
        if reached < len(order) or n >= len(ids):
            return _first(ids, logits, order, reached + 1)
        n *= 8


def min_p(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """The tokens at least `p` times as likely as the most likely one (Nguyen et al. 2024)."""
    if p <= 0:
        return ids, logits
    largest = logits.max()
    keep = (logits >= min(largest, largest + math.log(p))).nonzero()[0]
    return ids[keep], logits[keep]


def typical(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """Locally typical sampling: tokens with surprisal nearest to the entropy, up to mass `p` (Meister et al. 2022)."""
    if p >= 1:
        return ids, logits
    shifted = logits.astype(np.float64) - logits.max()
    surprisal = np.log(np.exp(shifted).sum()) - shifted
    probabilities = np.exp(-surprisal)
    possible = probabilities > 0
    entropy = (probabilities[possible] * surprisal[possible]).sum()
    order = np.argsort(np.abs(surprisal - entropy), kind="stable")
    return _first(ids, logits, order, probabilities[order].cumsum().searchsorted(p, side="right") + 1)


def _first(ids: TokenIds, logits: Logits, order: TokenIds, n: int) -> Tokens:
    """The first `n` tokens in this order."""
    keep = order[:n]
    keep.sort()
    return ids[keep], logits[keep]


def temperature(ids: TokenIds, logits: Logits, value: float) -> Tokens:
    """Logits divided by `value`, as float64."""
    return ids, logits.astype(np.float64) / value


def near(logits: Logits, k: int, more: Sequence[int] = ()) -> TokenIds | None:
    """Indices of those of `[n]` logits that may be among the `k` largest, and `more`; None if n is too small for this.

    The logits are seen as a table, whose column maxima are found by comparing whole rows. At least k logits reach the
    k-th largest column maximum.
    """
    n_columns = len(logits) // _ROWS
    if n_columns < 2 * k:
        return None
    maxima = np.maximum.reduce(logits[: _ROWS * n_columns].reshape(_ROWS, n_columns), axis=0)
    maxima.partition(n_columns - k)
    keep = logits >= maxima[n_columns - k]
    if more:
        keep[[i for i in more if i < len(logits)]] = True
    found: TokenIds = keep.nonzero()[0]
    return found


def _largest(logits: Logits, k: int) -> TokenIds:
    """Indices, ascending, of the `k` largest of `[n]` logits, or of all; among equals the lowest."""
    if k >= len(logits):
        return np.arange(len(logits))
    some = near(logits, k)
    logits = logits if some is None else logits[some]
    least = np.partition(logits, len(logits) - k)[len(logits) - k]
    keep: TokenIds = (logits >= least).nonzero()[0]
    if len(keep) > k:
        keep = np.delete(keep, (logits[keep] == least).nonzero()[0][k - len(keep) :])
    return keep if some is None else some[keep]

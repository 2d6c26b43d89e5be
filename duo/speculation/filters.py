"""Sampling filters with the semantics of llama.cpp (src/llama-sampler.cpp).

Each takes the ids `[n]` int64, ascending, and the logits `[n]` of the remaining tokens, and returns those it keeps, in
the same order. Every filter keeps at least one.
"""

import math
from collections.abc import Sequence

import numpy as np

from duo.speculation.types import Logits, TokenIds

Tokens = tuple[TokenIds, Logits]

_ROWS = 128  # logits per maximum in the search for the largest
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
    tokens, counts = np.unique(np.array(recent, np.int64), return_counts=True)
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
    near = _at_least(logits, k)
    if near is not None:
        ids, logits = ids[near], logits[near]
    least = np.partition(logits, len(logits) - k)[len(logits) - k]
    keep = logits >= least
    if (surplus := int(np.count_nonzero(keep)) - k) > 0:
        keep[np.flatnonzero(logits == least)[-surplus:]] = False
    return ids[keep], logits[keep]


def top_p(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """The most likely tokens whose probabilities sum to `p` or more (Holtzman et al. 2020)."""
    if p >= 1:
        return ids, logits
    weights = np.exp(logits - logits.max())
    total = weights.sum(dtype=np.float64)
    n = _FIRST_TRY
    while True:
        # Sorting a large vocabulary takes longer than everything else.
        near = top_k(np.arange(len(ids)), logits, n)[0]
        order = near[np.argsort(-logits[near], kind="stable")]
        reached = np.flatnonzero(weights[order].cumsum(dtype=np.float64) >= p * total)
        if reached.size or n >= len(ids):
            break
        n *= 8
    return _first(ids, logits, order, reached)


def min_p(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """The tokens at least `p` times as likely as the most likely one (Nguyen et al. 2024)."""
    if p <= 0:
        return ids, logits
    largest = logits.max()
    keep = logits >= min(largest, largest + math.log(p))
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
    return _first(ids, logits, order, np.flatnonzero(probabilities[order].cumsum() > p))


def _first(ids: TokenIds, logits: Logits, order: TokenIds, enough: TokenIds) -> Tokens:
    """The tokens in this order up to the first that is `enough`; all if none is."""
    keep = np.sort(order[: enough[0] + 1]) if enough.size else np.arange(len(ids))
    return ids[keep], logits[keep]


def temperature(ids: TokenIds, logits: Logits, value: float) -> Tokens:
    """Logits divided by `value`, as float64."""
    return ids, logits.astype(np.float64) / value


def _at_least(logits: Logits, k: int) -> TokenIds | None:
    """Indices of those of `[n]` logits that may be among the `k` largest; None if n is too small for this to be faster.

    The logits are seen as a table, whose column maxima are found by comparing whole rows. At least k logits reach the
    k-th largest column maximum, and they are all in columns whose maximum reaches it.
    """
    n_columns = len(logits) // _ROWS
    if n_columns < 2 * k:
        return None
    table, rest = logits[: _ROWS * n_columns].reshape(_ROWS, n_columns), logits[_ROWS * n_columns :]
    maxima = table.max(axis=0)
    bound = np.partition(maxima, n_columns - k)[n_columns - k]
    columns = np.flatnonzero(maxima >= bound)
    row, column = np.nonzero(table[:, columns] >= bound)
    return np.concatenate((row * n_columns + columns[column], _ROWS * n_columns + np.flatnonzero(rest >= bound)))

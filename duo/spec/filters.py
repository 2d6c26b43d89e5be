"""Filters: from all logits to those of the tokens that may be chosen, with llama.cpp's meanings.

Each takes the ids `[n]` int64, ascending, and the logits `[n]` of the tokens that are left, and returns those that it
leaves, ids still ascending. No filter leaves none. After llama.cpp, src/llama-sampler.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from duo.spec.types import Logits, TokenIds

Tokens = tuple[TokenIds, Logits]

_ROWS = 128  # logits that share a maximum when the largest are looked for
_FEW = 1024  # tokens that are simply sorted
_FIRST_TRY = 256  # the most likely tokens among which top-p looks first


def bias(ids: TokenIds, logits: Logits, biases: Sequence[tuple[int, float]]) -> Tokens:
    """Add to the logits of single tokens; those that are not there are passed over."""
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
    """The `k` largest logits (Fan et al. 2018); all if k is 0. Of equals the lowest ids stay."""
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
    n = len(ids) if len(ids) <= _FEW else _FIRST_TRY
    while True:
        # A full sort of a large vocabulary takes longer than all else.
        near = np.arange(len(ids)) if n >= len(ids) else _largest(logits, n)
        order = near[np.argsort(-logits[near], kind="stable")]
        reached = np.flatnonzero(weights[order].cumsum(dtype=np.float64) >= p * total)
        if reached.size or n >= len(ids):
            break
        n *= 8
    keep = np.sort(order[: reached[0] + 1]) if reached.size else np.arange(len(ids))
    return ids[keep], logits[keep]


def min_p(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """The tokens at least `p` times as likely as the most likely one (Nguyen et al. 2024)."""
    if p <= 0:
        return ids, logits
    largest = logits.max()
    keep = logits >= min(largest, largest + math.log(p))
    return ids[keep], logits[keep]


def typical(ids: TokenIds, logits: Logits, p: float) -> Tokens:
    """The tokens whose surprise is nearest to the entropy, that sum to more than `p` (Meister et al. 2022)."""
    if p >= 1:
        return ids, logits
    shifted = logits.astype(np.float64) - logits.max()
    surprise = np.log(np.exp(shifted).sum()) - shifted
    probabilities = np.exp(-surprise)
    possible = probabilities > 0
    entropy = (probabilities[possible] * surprise[possible]).sum()
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    enough = np.flatnonzero(probabilities[order].cumsum() > p)
    keep = np.sort(order[: enough[0] + 1]) if enough.size else np.arange(len(ids))
    return ids[keep], logits[keep]


def temperature(ids: TokenIds, logits: Logits, value: float) -> Tokens:
    """Logits over `value`, as float64."""
    return ids, logits.astype(np.float64) / value


def _largest(logits: Logits, k: int) -> TokenIds:
    """Where the `k` largest of `[n]` are, in order of position."""
    return top_k(np.arange(len(logits)), logits, k)[0]


def _at_least(logits: Logits, k: int) -> TokenIds | None:
    """Where `[n]` logits are that may be among the `k` largest; None if that is not worth finding out.

    As rows of a table, so that the maxima of its columns are found by comparing whole rows. The k-th largest maximum is
    a bound that at least k logits reach, and only columns whose maximum does hold any.
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

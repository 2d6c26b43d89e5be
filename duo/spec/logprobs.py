"""Logprobs: natural logarithms of the target's probabilities, from its logits as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from duo.spec.sampling import runners_up
from duo.spec.types import Logits, TokenLogprobs


def logprobs(rows: Logits, tokens: Sequence[int], n: int) -> tuple[TokenLogprobs, ...]:
    """Of each of `tokens` in its row of logits `[k, n_vocab]`, and of the `n` most likely tokens there.

    Every row by itself and in double precision, so that the result does not depend on the other rows.
    """
    return tuple(_logprobs(row, token, n) for row, token in zip(rows, tokens, strict=False))


def _logprobs(row: Logits, token: int, n: int) -> TokenLogprobs:
    best = int(row.argmax())
    largest = float(row[best])
    weights = row.astype(np.float64)
    weights -= largest
    np.exp(weights, out=weights)
    log_total = math.log(weights.sum())
    top = (best, *runners_up(row, best, n - 1)[1]) if n else ()
    values = [float(row[i]) - largest - log_total for i in (token, *top)]
    return TokenLogprobs(token, values[0], tuple(zip(top, values[1:], strict=True)))

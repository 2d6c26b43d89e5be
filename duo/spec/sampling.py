"""From logits to a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from duo.spec.types import Logits


class Sampler(Protocol):
    """Chooses a token. The choice depends on nothing but its arguments, so draft and target can share it."""

    def sample(self, logits: Logits, position: int) -> int:
        """The token for `position`, from logits `[n_vocab]`, which it may overwrite."""
        ...


class Greedy:
    """Always the most likely token; of equals the one with the lowest id."""

    def __init__(self, banned: Sequence[int] = ()) -> None:
        """`banned` tokens are never chosen."""
        self._banned = np.array(sorted(banned), dtype=np.intp)

    def sample(self, logits: Logits, position: int) -> int:  # noqa: ARG002 - greedy choice has no randomness
        """The arg-max of logits `[n_vocab]`; overwrites the banned ones."""
        if self._banned.size:
            logits[self._banned[: self._banned.searchsorted(logits.size)]] = -np.inf
        return int(logits.argmax())


def confidence(logits: Logits, token: int) -> float:
    """The gap between `token`'s logit in `[n_vocab]` and the best of the others.

    It ranks guesses as well as a probability does, and costs no sum over the vocabulary.
    """
    own = logits[token]
    logits[token] = -np.inf
    gap = own - logits.max()
    logits[token] = own
    return float(gap)

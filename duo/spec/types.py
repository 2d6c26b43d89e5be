"""What passes between draft, target and policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Candidates:
    """A chain of guesses that follows the accepted tokens: the parent of each is the one before it."""

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()  # gap between the draft's top two logits, one per token

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the target made of candidates.

    `token` is its own: *recovered* after a rejection, or the *bonus* when every candidate was accepted.
    """

    accepted: tuple[int, ...]
    token: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the step adds to the text."""
        return (*self.accepted, self.token)


@dataclass(frozen=True, slots=True)
class Step:
    """One target decode as the reader sees it: the first `n_accepted` tokens were the draft's guesses."""

    tokens: tuple[int, ...]
    n_accepted: int
    text: tuple[bytes, ...]  # what each token adds; a character that spans tokens comes with its last one

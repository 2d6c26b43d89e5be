"""What passes between draft, target and policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.int64]


class Distribution(NamedTuple):
    """Probabilities `[n]` of tokens ids `[n]`, ascending; they sum to one, and all other tokens have none."""

    ids: TokenIds
    probabilities: Floats

    def of(self, token: int) -> float:
        """The probability of one token."""
        i = int(self.ids.searchsorted(token))
        return float(self.probabilities[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


class Guess(NamedTuple):
    """A token that the draft proposes.

    `confidence` ranks guesses: the gap between the best score and the second, of whatever the guess maximises.
    `distribution` is what it was drawn from, if its verification needs to know.
    """

    token: int
    confidence: float
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """A chain of guesses that follows the accepted tokens: the parent of each is the one before it."""

    guesses: tuple[Guess, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token of each."""
        return tuple(guess.token for guess in self.guesses)

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.guesses)


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
    """What one decode of the target adds to the text; its first `n_accepted` tokens were candidates of the draft."""

    tokens: tuple[int, ...]
    n_accepted: int
    pieces: tuple[bytes, ...]  # what each token adds; a character that spans tokens comes with its last one
    rejected: tuple[int, ...] = ()  # candidates that were verified and not accepted

    @property
    def text(self) -> str:
        """What the step adds to the text: whole characters, U+FFFD for bytes that are no UTF-8."""
        return b"".join(self.pieces).decode("utf-8", "replace")

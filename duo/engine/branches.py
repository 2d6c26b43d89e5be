"""Branches: the likely outcomes of a verification, continued by the draft while the target verifies.

After Kumar, Dao and May 2026, "Speculative Speculative Decoding" (arXiv 2603.03251): the draft predicts what the
verification will return and drafts for each prediction, so that after a rejection it need not begin anew. Here the
outcomes are sequences of the draft's KV cache, decoded in one batch with its chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duo.engine.decoder import Decoder
from duo.spec.outcomes import MOST_DEEP, likely
from duo.spec.policy import Lookahead
from duo.spec.types import Guess, Outcome


class Preparation(NamedTuple):
    """What a draft may do now."""

    lookahead: Lookahead = Lookahead()
    n_verified: int = 0  # tokens in the text if all candidates that are being verified are accepted; 0: none are
    may_draft: bool = True  # whether it may continue its chain


@dataclass(slots=True)
class Branch:
    """An outcome, and the tokens that continue it. All but the last are decoded."""

    sequence: int
    outcome: Outcome
    survival: float = 1.0  # probability that all its tokens are accepted if the outcome comes true
    guesses: list[Guess] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The outcome's token and those after it."""
        return [self.outcome.token, *(guess.token for guess in self.guesses)]

    @property
    def position(self) -> int:
        """Of the next token."""
        return self.outcome.position + 1 + len(self.guesses)


class Branches:
    """The branches of one text in a draft's context. Positions are those in the text.

    `chain`: the draft's own tokens that have not been accepted, by position.
    """

    def __init__(self, draft: Decoder) -> None:
        self._draft = draft
        self._open: list[Branch] = []
        self.chain: dict[int, Guess] = {}

    def prune(self, n_accepted: int) -> None:
        """Drop what the target has decided: it has accepted `n_accepted` tokens."""
        self.chain = {position: guess for position, guess in self.chain.items() if position >= n_accepted}
        self._drop([branch for branch in self._open if branch.outcome.position < n_accepted])

    def clear(self) -> None:
        """Drop everything."""
        self.chain.clear()
        self.drop_open()

    def drop_open(self) -> None:
        """Drop all branches."""
        self._drop(list(self._open))

    def take(self, outcome: Outcome) -> Branch | None:
        """Drop everything but the branch of this outcome, which has come true; its tokens are now the chain."""
        found = next((branch for branch in self._open if branch.outcome == outcome), None)
        if found is not None:
            self._draft.adopt(found.sequence)
            self._open.remove(found)
        self.clear()
        if found is not None:
            self.chain = dict(enumerate(found.guesses, outcome.position + 1))
        return found

    def plan(self, n_accepted: int, first: int, preparation: Preparation) -> tuple[list[Branch], int]:
        """The branches to continue in the next decode, and how many of them are new.

        The text has `n_accepted` accepted tokens, and token `first` is the first in the context.
        """
        lookahead, n_verified, _ = preparation
        if not n_verified:
            return [], 0
        n_new = 0
        for outcome in self._likely(n_accepted, n_verified, lookahead):
            if not 0 <= outcome.position - first <= self._draft.n_past:  # the context begins later
                continue
            if not (free := self._free(lookahead.n_branches)):
                break
            self._draft.branch(free, outcome.position - first)
            self._open.append(Branch(free, outcome))
            n_new += 1
        return self.due(lookahead), n_new

    def due(self, lookahead: Lookahead) -> list[Branch]:
        """The open branches that are worth another token."""
        longest = min(lookahead.n_ahead, MOST_DEEP)
        return [b for b in self._open if b.survival >= lookahead.least and len(b.guesses) < longest]

    def extend(self, branch: Branch, guess: Guess, lookahead: Lookahead) -> None:
        """A decode has found this token."""
        branch.survival *= lookahead.probability(guess.confidence)
        branch.guesses.append(guess)

    def _likely(self, n_accepted: int, n_verified: int, lookahead: Lookahead) -> Iterator[Outcome]:
        """The outcomes of this verification that are not open, the most likely first."""
        guesses = list[Guess]()
        for position in range(n_accepted, n_verified + 1):
            if (guess := self.chain.get(position)) is None:
                break
            guesses.append(guess)
        taken = {branch.outcome for branch in self._open}
        chances = [lookahead.probability(guess.confidence) for guess in guesses]
        for _, i, rank in likely(chances, lookahead.ranks, lookahead.n_branches):
            alternatives = guesses[i].alternatives
            if rank < len(alternatives) and (found := Outcome(n_accepted + i, alternatives[rank])) not in taken:
                yield found

    def _free(self, n_most: int) -> int | None:
        used = {branch.sequence for branch in self._open}
        return next((n for n in range(1, min(n_most, self._draft.n_branches) + 1) if n not in used), None)

    def _drop(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self._draft.drop(branch.sequence)
            self._open.remove(branch)

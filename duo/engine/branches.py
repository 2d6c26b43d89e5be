"""Branches: the likely outcomes of a verification, continued by the draft while the target verifies.

After Kumar, Dao and May 2026, "Speculative Speculative Decoding" (arXiv 2603.03251): the draft predicts what the
verification will return and drafts for each prediction, so that after a rejection it need not begin anew. Here the
outcomes are sequences of the draft's KV cache, decoded in one batch with its chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from duo.engine.decoder import Decoder
from duo.spec.calibration import Lookahead
from duo.spec.outcomes import MOST_DEEP, likely
from duo.spec.types import Guess, Outcome, common_prefix


class Preparation(NamedTuple):
    """What a draft may do now."""

    lookahead: Lookahead = Lookahead()
    n_verified: int = 0  # tokens in the text if all candidates that are being verified are accepted; 0: none are
    may_draft: bool = True  # whether it may continue its chain
    chain: Sequence[Guess] = ()  # the pending candidates, if outcomes may be prepared


@dataclass(slots=True)
class Branch:
    """A sequence of the draft's cache that continues an outcome. All tokens but the last are decoded."""

    sequence: int
    outcome: Outcome
    tokens: list[int]  # the outcome's and those after it
    survival: float = 1.0  # probability that all of them are accepted if the outcome comes true

    @property
    def position(self) -> int:
        """Of the next token."""
        return self.outcome.position + len(self.tokens)


class Branches:
    """The branches of one text in a draft's context. Positions are those in the text.

    What the session keeps of an outcome are its candidates; this is what the cache holds.
    """

    def __init__(self, draft: Decoder) -> None:
        self._draft = draft
        self._open: list[Branch] = []

    def prune(self, n_accepted: int) -> None:
        """Drop what the target has decided: it has accepted `n_accepted` tokens."""
        self._drop([branch for branch in self._open if branch.outcome.position < n_accepted])

    def clear(self) -> None:
        """Drop all branches."""
        self._drop(list(self._open))

    def take(self, outcome: Outcome) -> Branch | None:
        """Drop everything but the branch of this outcome, which has come true: sequence 0 continues it now."""
        found = next((branch for branch in self._open if branch.outcome == outcome), None)
        if found is not None:
            self._draft.adopt(found.sequence)
            self._open.remove(found)
        self.clear()
        return found

    def plan(
        self, text: Sequence[int], n_accepted: int, first: int, preparation: Preparation
    ) -> tuple[list[Branch], int]:
        """The branches to continue in the next decode, and how many of them are new.

        The first `n_accepted` tokens of the `text` are accepted, and token `first` is the first in the context.
        """
        lookahead = preparation.lookahead
        if not preparation.n_verified:
            return [], 0
        n_new = 0
        for outcome in self._likely(text, n_accepted, preparation):
            if not 0 <= outcome.position - first <= self._draft.n_past:  # the context begins later
                continue
            if not (free := self._free(lookahead.n_branches)):
                break
            self._draft.branch(free, outcome.position - first)
            self._open.append(Branch(free, outcome, [outcome.token]))
            n_new += 1
        return self.due(lookahead), n_new

    def due(self, lookahead: Lookahead) -> list[Branch]:
        """The open branches that are worth another token."""
        longest = min(lookahead.n_ahead, MOST_DEEP)
        return [b for b in self._open if b.survival >= lookahead.least and len(b.tokens) <= longest]

    def extend(self, branch: Branch, guess: Guess, lookahead: Lookahead) -> None:
        """A decode has found this token."""
        branch.survival *= lookahead.probability(guess.confidence)
        branch.tokens.append(guess.token)

    def _likely(self, text: Sequence[int], n_accepted: int, preparation: Preparation) -> Iterator[Outcome]:
        """The outcomes of this verification that are not open, the most likely first."""
        lookahead, n_verified, _, chain = preparation
        n = min(n_verified + 1 - n_accepted, common_prefix([guess.token for guess in chain], text[n_accepted:]))
        taken = {branch.outcome for branch in self._open}
        chances = [lookahead.probability(guess.confidence) for guess in chain[:n]]
        for _, i, rank in likely(chances, lookahead.ranks, lookahead.n_branches):
            alternatives = chain[i].alternatives
            if rank < len(alternatives) and (found := Outcome(n_accepted + i, alternatives[rank])) not in taken:
                yield found

    def _free(self, n_most: int) -> int | None:
        used = {branch.sequence for branch in self._open}
        return next((n for n in range(1, min(n_most, self._draft.n_branches) + 1) if n not in used), None)

    def _drop(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self._draft.drop(branch.sequence)
            self._open.remove(branch)

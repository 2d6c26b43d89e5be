"""Branches: the likely outcomes of a verification, continued by the draft while the target verifies.

After Kumar, Dao and May 2026, "Speculative Speculative Decoding" (arXiv 2603.03251): the draft predicts what the
verification will return and drafts for each prediction, so that after a rejection it need not begin anew. Here the
outcomes are sequences of the draft's KV cache, decoded in one batch with its chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter
from duo.engine.queue import CandidateQueue, Preparation
from duo.spec.calibration import MAX_DEEP, Lookahead, likely
from duo.spec.types import Guess, Outcome, common_prefix


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

    def prune(self, n_accepted: float = math.inf) -> None:
        """Drop what the target has decided: it has accepted `n_accepted` tokens; by default all."""
        for branch in self._open:
            if branch.outcome.position < n_accepted:
                self._draft.drop(branch.sequence)
        self._open = [branch for branch in self._open if branch.outcome.position >= n_accepted]

    def take(self, outcome: Outcome) -> Branch | None:
        """Drop everything but the branch of this outcome, which has come true: sequence 0 continues it now."""
        found = next((branch for branch in self._open if branch.outcome == outcome), None)
        if found is not None:
            self._draft.adopt(found.sequence)
            self._open.remove(found)
        self.prune()
        return found

    def plan(
        self, text: Sequence[int], n_accepted: int, first: int, preparation: Preparation
    ) -> tuple[list[Branch], int]:
        """The branches to continue in the next decode, and how many of them are new.

        The first `n_accepted` tokens of the `text` are accepted, and token `first` is the first in the context.
        """
        lookahead, n_verified, _, chain = preparation
        if not n_verified:
            return [], 0
        n = min(n_verified + 1 - n_accepted, common_prefix([guess.token for guess in chain], text[n_accepted:]))
        chances = [lookahead.probability(guess.confidence) for guess in chain[:n]]
        taken, used = {branch.outcome for branch in self._open}, {branch.sequence for branch in self._open}
        free = [i for i in range(1, min(lookahead.n_branches, self._draft.n_branches) + 1) if i not in used]
        n_new = 0
        for _, i, rank in likely(chances, lookahead.ranks, lookahead.n_branches):
            if n_new == len(free):
                break
            position, alternatives = n_accepted + i, chain[i].alternatives
            is_inside = 0 <= position - first <= self._draft.n_past  # else the context begins later
            if is_inside and rank < len(alternatives) and (found := Outcome(position, alternatives[rank])) not in taken:
                self._draft.branch(free[n_new], position - first)
                self._open.append(Branch(free[n_new], found, [found.token]))
                n_new += 1
        return self.due(lookahead), n_new

    def due(self, lookahead: Lookahead) -> list[Branch]:
        """The open branches that are worth another token."""
        longest = min(lookahead.n_ahead, MAX_DEEP)
        return [b for b in self._open if b.survival >= lookahead.least and len(b.tokens) <= longest]

    def extend(self, branch: Branch, guess: Guess, lookahead: Lookahead) -> None:
        """A decode has found this token."""
        branch.survival *= lookahead.probability(guess.confidence)
        branch.tokens.append(guess.token)


@dataclass(eq=False)
class BranchingDrafter(Drafter):
    """Decodes its chain and the branches in one batch. When an outcome comes true, its branch becomes the chain."""

    queue: CandidateQueue

    def __post_init__(self, text: Sequence[int]) -> None:
        super().__post_init__(text)
        self._branches = Branches(self.context)

    def end(self) -> list[int]:
        """See Drafter."""
        self._branches.prune()
        return super().end()

    def step(self) -> bool:
        """Draft one token of the chain, if the target wants more, and of each branch. See Drafter."""
        start = self._now()
        self._reconcile()
        preparation, n_text = self._preparation, len(self._tokens)
        if not preparation.lookahead.n_branches:
            return self._draft_token(start)
        is_ready = n_text - self._first - self.context.n_past == 1 and n_text - self._first <= self.context.n_ctx
        if preparation.may_draft and not (is_ready and self._tokens[-1] < self.context.n_vocab):
            self._branches.prune()  # the context may have to be cleared
            return self._draft_token(start)
        branches, n_new = self._branches.plan(self._tokens, self._n_seen, self._first, preparation)
        if branches:
            self._decode_all(start, branches, n_new)
        elif preparation.may_draft:
            return self._draft_token(start)
        else:
            self.queue.rest()
        return True

    def _decode_all(self, start: float, branches: Sequence[Branch], n_new: int) -> None:
        lookahead, _, may_draft, _ = self._preparation
        self.queue.continues((branch.outcome for branch in branches), on_chain=may_draft)
        entries = [(branch.sequence, branch.tokens[-1]) for branch in branches]
        if may_draft:
            entries.append((0, self._tokens[-1]))
        rows = self.context.decode_each(entries)[:, : self.n_vocab]
        offers = []
        for branch, logits in zip(branches, rows, strict=False):
            position = branch.position
            guess = self.guesser.guess(logits, position, self._recent(position, branch.tokens))
            offers.append((branch.outcome, position, guess))
            self._branches.extend(branch, guess, lookahead)
        own: tuple[int, Guess] | None = None
        if may_draft:
            position = len(self._tokens)
            own = position, self.guesser.guess(rows[-1], position, self._recent(position))
        end = self._now()
        seconds = 0.0 if self.context.was_first else end - start
        useful = self.queue.publish_all(own, offers, seconds, more=bool(self._branches.due(lookahead)))
        if own is not None:
            if useful:
                self._tokens.append(own[1].token)
            self.metrics.drafted(start, end, 1)
        self.metrics.prepared(start, end, len(branches), n_new)

    def _reconcile(self) -> None:
        super()._reconcile()
        self._branches.prune(self._n_seen if self._preparation.lookahead.n_branches else math.inf)

    def _adopt(self, outcome: Outcome) -> bool:
        branch = self._branches.take(outcome)
        if branch is None:
            return False
        self._tokens[outcome.position :] = branch.tokens
        return True

    def _keep(self, n: int) -> None:
        self._branches.prune()
        super()._keep(n)

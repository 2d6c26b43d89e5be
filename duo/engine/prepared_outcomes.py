"""Branches: the likely outcomes of a verification, continued by the draft while the target verifies.

After Kumar, Dao and May 2026, "Speculative Speculative Decoding" (arXiv 2603.03251): the draft predicts what the
verification will return and drafts for each prediction, so that after a rejection it need not begin anew. Here the
outcomes are sequences of the draft's KV cache, decoded in one batch with its chain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from duo.engine.async_draft import CandidateQueue
from duo.engine.drafter import Drafter
from duo.speculation.acceptance import MAX_DEEP, Lookahead, likely
from duo.speculation.types import Candidate, Outcome, common_prefix


@dataclass(slots=True)
class Branch:
    """A sequence of the draft's cache that continues an outcome. All tokens but the last are decoded."""

    sequence: int
    outcome: Outcome
    tokens: list[int]  # the outcome's and those after it
    survival: float = 1.0  # probability that all of them are accepted if the outcome comes true

    def extend(self, candidate: Candidate, lookahead: Lookahead) -> None:
        """A decode has found this token."""
        self.survival *= lookahead.probability(candidate.confidence)
        self.tokens.append(candidate.token)


@dataclass(eq=False)
class PreparingDrafter(Drafter):
    """Decodes its chain and the branches in one batch. When an outcome comes true, its branch becomes the chain.

    A branch is the cache's side of an outcome; the TokenSequence has the outcome's candidates.
    """

    queue: CandidateQueue

    def __post_init__(self, text: Sequence[int]) -> None:
        super().__post_init__(text)
        self._branches: list[Branch] = []

    def end(self) -> list[int]:
        """See Drafter."""
        self._prune()
        return super().end()

    def step(self, expected: Sequence[int] = ()) -> bool:
        """Draft one token of the chain, if the target wants more, and of each branch. See Drafter."""
        start = self._now()
        self._reconcile()
        may_draft, n_text = self._update.may_draft, len(self._tokens)
        if not self._update.lookahead.n_branches:
            return self._draft_token(start, expected)
        is_ready = n_text - self._first - self.context.n_past == 1 and n_text - self._first <= self.context.n_ctx
        if may_draft and not (is_ready and self._tokens[-1] < self.context.n_vocab):
            self._prune()  # the context may have to be cleared
            return self._draft_token(start)
        n_new = self._open()
        if branches := self._due():
            self._decode_all(start, branches, n_new)
        elif may_draft:
            return self._draft_token(start)
        else:
            self.queue.rest()
        return True

    def _open(self) -> int:
        """Begin branches for the likely outcomes of this verification, if there is one. Returns how many."""
        lookahead, chain, n_seen = self._update.lookahead, self._update.chain, self._n_seen
        n = min(
            self._update.n_verified + 1 - n_seen,
            common_prefix([candidate.token for candidate in chain], self._tokens[n_seen:]),
        )
        chances = [lookahead.probability(candidate.confidence) for candidate in chain[: max(0, n)]]
        taken, used = {branch.outcome for branch in self._branches}, {branch.sequence for branch in self._branches}
        free = [i for i in range(1, min(lookahead.n_branches, self.context.n_branches) + 1) if i not in used]
        n_new = 0
        for _, i, rank in likely(chances, lookahead.ranks, lookahead.n_branches):
            if n_new == len(free):
                break
            n_before, alternatives = n_seen + i - self._first, chain[i].alternatives
            if rank >= len(alternatives) or not 0 <= n_before <= self.context.n_past:  # the context begins later
                continue
            outcome = Outcome(n_seen + i, alternatives[rank])
            if outcome not in taken:
                self.context.branch(free[n_new], n_before)
                self._branches.append(Branch(free[n_new], outcome, [outcome.token]))
                n_new += 1
        return n_new

    def _due(self) -> list[Branch]:
        """The branches that are worth another token, during a verification."""
        lookahead = self._update.lookahead
        longest = min(lookahead.n_ahead, MAX_DEEP) if self._update.n_verified else 0
        return [b for b in self._branches if b.survival >= lookahead.least and len(b.tokens) <= longest]

    def _prune(self, n_accepted: float = math.inf) -> None:
        """Drop what the target has decided: it has accepted `n_accepted` tokens; by default all."""
        branches, self._branches = self._branches, []
        for branch in branches:
            if branch.outcome.position < n_accepted:
                self.context.drop(branch.sequence)
            else:
                self._branches.append(branch)

    def _decode_all(self, start: float, branches: Sequence[Branch], n_new: int) -> None:
        may_draft, offers = self._update.may_draft, []
        self.queue.continues((branch.outcome for branch in branches), on_chain=may_draft)
        entries = [(branch.sequence, branch.tokens[-1]) for branch in branches]
        if may_draft:
            entries.append((0, self._tokens[-1]))
        rows = self.context.decode_each(entries)[:, : self.n_vocab]  # (entries, n_vocab): the chain's is the last
        for branch, logits in zip(branches, rows, strict=False):
            position = branch.outcome.position + len(branch.tokens)
            candidate = self.sampler.candidate(logits, position, self._recent(position, branch.tokens))
            offers.append((branch.outcome, position, candidate))
            branch.extend(candidate, self._update.lookahead)
        position, own = len(self._tokens), None
        if may_draft:
            own = self.sampler.candidate(rows[-1], position, self._recent(position))
        end, n_timed = self._now(), 0 if self.context.was_first else 1
        more = bool(self._due())
        is_useful = self.queue.publish(self._update.epoch, position, own, n_timed, end - start, offers, more=more)
        if own is not None:
            if is_useful:
                self._tokens.append(own.token)
            self.metrics.drafted(start, end, 1)
        self.metrics.prepared(start, end, len(branches), n_new)

    def _reconcile(self) -> None:
        super()._reconcile()
        self._prune(self._n_seen if self._update.lookahead.n_branches else math.inf)

    def _adopt(self, outcome: Outcome) -> bool:
        found = next((branch for branch in self._branches if branch.outcome == outcome), None)
        if found is not None:
            self.context.adopt(found.sequence)
            self._branches.remove(found)
            self._tokens[outcome.position :] = found.tokens
        self._prune()
        return found is not None

    def _keep(self, n: int) -> None:
        self._prune()
        super()._keep(n)

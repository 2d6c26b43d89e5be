"""BranchingDrafter: a Drafter that also continues likely outcomes of the verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from duo.engine.branches import Branch, Branches
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter, TargetSide
from duo.engine.metrics import Metrics
from duo.spec.sampling import Guesser
from duo.spec.types import Guess, Outcome


class BranchingSide(TargetSide, Protocol):
    """The view that such a draft has of its target: a CandidateQueue."""

    def continues(self, outcomes: Iterable[Outcome], *, on_chain: bool) -> None:
        """The decode that was begun continues these outcomes, and with `on_chain` the draft's chain."""

    def publish_all(
        self,
        own: tuple[int, Guess] | None,
        branches: Iterable[tuple[Outcome, int, Guess]],
        seconds: float,
        *,
        more: bool,
    ) -> bool:
        """Offer the tokens of one decode: see CandidateQueue."""

    def rest(self) -> None:
        """There is nothing to do."""


class BranchingDrafter(Drafter):
    """Decodes its chain and the branches in one batch. When an outcome comes true, its branch becomes the chain."""

    def __init__(
        self,
        draft: Decoder,
        queue: BranchingSide,
        guesser: Guesser,
        n_vocab: int,
        metrics: Metrics,
        text: Sequence[int] = (),
    ) -> None:
        """See Drafter."""
        super().__init__(draft, queue, guesser, n_vocab, metrics, text)
        self._side = queue
        self._branches = Branches(draft)

    def end(self) -> list[int]:
        """See Drafter."""
        self._branches.clear()
        return super().end()

    def step(self) -> bool:
        """Draft one token of the chain, if the target wants more, and of each branch. See Drafter."""
        start = self._now()
        self._reconcile()
        preparation, n_text = self._preparation, len(self._tokens)
        if not preparation.lookahead.n_branches:
            return self._draft_token(start)
        is_ready = n_text - self._first - self._draft.n_past == 1 and n_text - self._first <= self._draft.n_ctx
        if preparation.may_draft and not (is_ready and self._tokens[-1] < self._draft.n_vocab):
            self._branches.clear()  # the context may have to be cleared
            return self._draft_token(start)
        branches, n_new = self._branches.plan(self._tokens, self._n_seen, self._first, preparation)
        if branches:
            self._decode_all(start, branches, n_new)
        elif preparation.may_draft:
            return self._draft_token(start)
        else:
            self._side.rest()
        return True

    def _decode_all(self, start: float, branches: Sequence[Branch], n_new: int) -> None:
        lookahead, _, may_draft, _ = self._preparation
        self._side.continues((branch.outcome for branch in branches), on_chain=may_draft)
        entries = [(branch.sequence, branch.tokens[-1]) for branch in branches]
        if may_draft:
            entries.append((0, self._tokens[-1]))
        rows = self._draft.decode_each(entries)[:, : self._n_vocab]
        offers = []
        for branch, logits in zip(branches, rows, strict=False):
            guess = self._guesser.guess(logits, branch.position, self._recent_of(branch))
            offers.append((branch.outcome, branch.position, guess))
            self._branches.extend(branch, guess, lookahead)
        own: tuple[int, Guess] | None = None
        if may_draft:
            position = len(self._tokens)
            own = position, self._guesser.guess(rows[-1], position, self._recent(position))
        end = self._now()
        seconds = 0.0 if self._draft.was_first else end - start
        useful = self._side.publish_all(own, offers, seconds, more=bool(self._branches.due(lookahead)))
        if own is not None:
            if useful:
                self._tokens.append(own[1].token)
            self._metrics.drafted(start, end, 1)
        self._metrics.prepared(start, end, len(branches), n_new)
        self._metrics.detail("draft", "publish", end, int(useful))

    def _recent_of(self, branch: Branch) -> Sequence[int]:
        n, at = self._guesser.n_recent, branch.outcome.position
        return [*self._tokens[max(0, at - n) : at], *branch.tokens][-n:] if n else ()

    def _reconcile(self) -> None:
        super()._reconcile()
        if self._preparation.lookahead.n_branches:
            self._branches.prune(self._n_seen)
        else:
            self._branches.clear()

    def _adopt(self, outcome: Outcome) -> bool:
        branch = self._branches.take(outcome)
        if branch is None:
            return False
        self._tokens[outcome.position :] = branch.tokens
        return True

    def _keep(self, n: int) -> None:
        self._branches.clear()
        super()._keep(n)

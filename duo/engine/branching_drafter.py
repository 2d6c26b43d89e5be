"""BranchingDrafter: a Drafter that also continues likely outcomes of the verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from duo.engine.branches import Branch, Branches
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter, Offer, TargetSide
from duo.engine.metrics import Metrics
from duo.spec.sampling import Guesser
from duo.spec.types import Guess, Outcome


class BranchingSide(TargetSide, Protocol):
    """The view that such a draft has of its target: a CandidateQueue."""

    def continues(self, outcomes: Iterable[Outcome], *, on_chain: bool) -> None:
        """The decode that was begun continues these outcomes, and with `on_chain` the draft's chain."""

    def publish_all(self, epoch: int, offers: Iterable[Offer], *, may_prepare: bool) -> bool:
        """publish() for several sequences. `may_prepare`: whether there is more to do besides the chain."""


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
            self._branches.drop_open()  # the context may have to be cleared
            return self._draft_token(start)
        branches, n_new = self._branches.plan(self._n_seen, self._first, preparation)
        if branches:
            self._decode_all(start, branches, n_new)
        elif preparation.may_draft:
            return self._draft_token(start)
        else:
            self._side.publish_all(self._epoch, (), may_prepare=False)
        return True

    def _decode_all(self, start: float, branches: Sequence[Branch], n_new: int) -> None:
        lookahead, _, may_draft = self._preparation
        self._side.continues((branch.outcome for branch in branches), on_chain=may_draft)
        entries = [(branch.sequence, branch.tokens[-1]) for branch in branches]
        if may_draft:
            entries.append((0, self._tokens[-1]))
        rows = self._draft.decode_each(entries)[:, : self._n_vocab]
        offers = []
        for branch, logits in zip(branches, rows, strict=False):
            before = self._recent_of(branch)
            guess = self._guesser.guess(logits, branch.position, before)
            offers.append(Offer(self._epoch, branch.position, guess, 0, 0.0, outcome=branch.outcome))
            self._branches.extend(branch, guess, lookahead)
        own: Guess | None = None
        if may_draft:
            position = len(self._tokens)
            own = self._guesser.guess(rows[-1], position, self._recent(position))
            offers.append(Offer(self._epoch, position, own, 0, 0.0))
        end = self._now()
        if not self._draft.was_first:
            offers[-1] = offers[-1]._replace(n_tokens=1, seconds=end - start, n_sequences=len(entries))
        useful = self._side.publish_all(self._epoch, offers, may_prepare=bool(self._branches.due(lookahead)))
        if own is not None:
            if useful:
                self._append(own)
            self._metrics.drafted(start, end, 1)
        self._metrics.prepared(start, end, len(branches), n_new)
        self._metrics.detail("draft", "publish", end, int(useful))

    def _recent_of(self, branch: Branch) -> Sequence[int]:
        n = self._guesser.n_recent
        return (
            [*self._tokens[max(0, branch.outcome.position - n) : branch.outcome.position], *branch.tokens][-n:]
            if n
            else ()
        )

    def _append(self, guess: Guess) -> None:
        self._branches.chain[len(self._tokens)] = guess
        super()._append(guess)

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

"""Session: the tokens accepted so far, and the draft's chain of guesses after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from duo.spec.types import Candidates, Guess


class Session:
    """The one account of a generation, and the rules by which guesses enter and leave it.

    `accepted` is the prompt and everything the target wrote. The pending candidates continue it without a gap.
    `epoch` counts the times that the chain was broken, mostly because the target contradicted it: a guess made in an
    earlier epoch is stale, for it builds on what is not there.
    """

    def __init__(self, prompt: Sequence[int], n_vocab: int, *, judges_all: bool = True) -> None:
        """`judges_all`: whether a guess that was not verified is right or wrong by what the target wrote instead."""
        self.accepted = list(prompt)
        self.epoch = 0
        self._n_vocab = n_vocab
        self._judges_all = judges_all
        self._pending: deque[Guess] = deque()
        self._late: list[tuple[float, bool]] = []

    @property
    def n_pending(self) -> int:
        """How far the draft is ahead of the accepted tokens."""
        return len(self._pending)

    def confidences(self) -> list[float]:
        """Confidence of each pending candidate."""
        return [guess.confidence for guess in self._pending]

    def candidates(self, k: int) -> Candidates:
        """The first `k` pending candidates. They stay pending."""
        return Candidates(tuple(islice(self._pending, k)))

    def offer(self, epoch: int, position: int, guess: Guess) -> bool:
        """Take the draft's guess for `position`. False if it is of no use and the draft should look again.

        Dropped are a guess of an earlier epoch, one that is there already, one that leaves a gap, one beyond the
        target's vocabulary, and one for a position where the target has already written something else. After a gap
        or a contradiction a new epoch begins, because the draft may have sent more that builds on it. A guess that
        comes late but right is of no use either, yet the draft is on the right way: True.
        """
        if epoch != self.epoch or not 0 <= guess.token < self._n_vocab:
            return False
        if position < len(self.accepted):
            right = self.accepted[position] == guess.token
            if self._judges_all:
                self._late.append((guess.confidence, right))
            self.epoch += not right
            return right
        gap = position - len(self.accepted) - len(self._pending)
        if gap:
            self.epoch += gap > 0
            return False
        self._pending.append(guess)
        return True

    def drop(self) -> None:
        """Forget the pending candidates: another draft takes over."""
        self._pending.clear()
        self._late.clear()
        self.epoch += 1

    def commit(self, tokens: Sequence[int], n_verified: int = 0) -> list[tuple[float, bool]]:
        """Add what the target wrote. Where it contradicts the pending candidates they go, and a new epoch begins.

        The first `n_verified` of the candidates were verified. Returns the confidence of every candidate that is now
        known to be right or wrong.
        """
        scores, self._late = self._late, []
        for i, token in enumerate(tokens):
            self.accepted.append(token)
            if not self._pending:
                continue
            guess = self._pending.popleft()
            if self._judges_all or i < n_verified:
                scores.append((guess.confidence, guess.token == token))
            if guess.token != token:
                self._pending.clear()
                self.epoch += 1
        return scores

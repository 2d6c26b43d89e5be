"""Session: the tokens accepted so far, and the draft's chain of guesses after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from duo.spec.types import Candidates


class Session:
    """The one account of a generation, and the rules by which guesses enter and leave it.

    `accepted` is the prompt and everything the target wrote. The pending candidates continue it without a gap.
    `epoch` counts the times that the target contradicted them: a guess made in an earlier epoch is stale.
    """

    def __init__(self, prompt: Sequence[int], n_vocab: int) -> None:
        self.accepted = list(prompt)
        self.epoch = 0
        self._n_vocab = n_vocab
        self._pending: deque[tuple[int, float]] = deque()

    @property
    def n_pending(self) -> int:
        """How far the draft is ahead of the accepted tokens."""
        return len(self._pending)

    def candidates(self, k: int) -> Candidates:
        """The first `k` pending candidates, fewer if there are fewer. They stay pending."""
        chain = [self._pending[i] for i in range(min(k, len(self._pending)))]
        return Candidates(tuple(token for token, _ in chain), tuple(confidence for _, confidence in chain))

    def offer(self, epoch: int, position: int, token: int, confidence: float) -> bool:
        """Take the draft's guess for `position`. False if it is of no use and the draft should look again.

        Dropped are a guess of an earlier epoch, one that leaves a gap, one beyond the target's vocabulary, and one
        for a position where the target has already written something else. A guess that comes late but right is
        of no use either, yet the draft is on the right way: True.
        """
        if epoch != self.epoch or not 0 <= token < self._n_vocab:
            return False
        if position < len(self.accepted):
            return self.accepted[position] == token
        if position != len(self.accepted) + len(self._pending):
            return False
        self._pending.append((token, confidence))
        return True

    def commit(self, tokens: Sequence[int]) -> None:
        """Add what the target wrote; where it contradicts the pending candidates they go, and a new epoch begins."""
        for token in tokens:
            if self._pending:
                if self._pending[0][0] == token:
                    self._pending.popleft()
                else:
                    self._pending.clear()
                    self.epoch += 1
            self.accepted.append(token)

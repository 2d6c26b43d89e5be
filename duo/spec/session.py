"""Session: the tokens accepted so far, and the draft's chain of candidates after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from duo.spec.types import Candidates, Guess


class Session:
    """The one account of a text, and the rules by which guesses enter and leave it. The target's loop owns it.

    `accepted` is the prompt and everything the target wrote. The pending candidates continue it without a gap.
    `epoch` counts the times that the chain was broken, mostly because the target contradicted it: a guess made in an
    earlier epoch is stale. A remote draft learns of that late, and finds out by itself where the text has left its
    chain; so of its guesses it counts whether they were made knowing the first `settled` tokens, the last of which
    contradicted a guess.
    """

    def __init__(self, prompt: Sequence[int], n_vocab: int, *, judges_all: bool = True) -> None:
        """`judges_all`: whether a guess that was not verified is right or wrong by what the target wrote instead."""
        self.accepted = list(prompt)
        self.n_prompt = len(prompt)
        self.epoch = 0
        self.settled = len(self.accepted)
        self._last = (0, -1)  # n_known and position of the last guess of a remote draft
        self._late_to = 0  # positions before this one have been scored late
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

    def offer(self, epoch: int, position: int, guess: Guess, n_known: int | None = None) -> bool:
        """Take the draft's guess for `position`. False if it is of no use and the draft should look again.

        `n_known` tokens were known where it was made; None: all that were accepted in its epoch.

        Dropped are a stale guess, one that came before or is there already, one that leaves a gap, one beyond the
        target's vocabulary, and one for a position where the target has already written something else. After a gap a
        new epoch begins, so that the draft begins again. A guess that comes late but right is of no use either, yet the
        draft is on the right way: True.
        """
        if not 0 <= guess.token < self._n_vocab or self._is_stale(epoch, position, n_known):
            return False
        if position < len(self.accepted):
            return self._judge_late(position, guess, once=n_known is not None)
        gap = position - len(self.accepted) - len(self._pending)
        if gap > 0 and epoch == self.epoch:
            self.epoch += 1
            self._last = (0, -1)
            self._late.append((guess.confidence, False))  # else a draft could do nothing else and lose nothing
        if not gap:
            self._pending.append(guess)
        return not gap

    def _is_stale(self, epoch: int, position: int, n_known: int | None) -> bool:
        if n_known is None:
            return epoch != self.epoch
        in_order = self._last < (n_known, position) and n_known <= position
        if in_order:
            self._last = (n_known, position)
        return not in_order or n_known < self.settled

    def _judge_late(self, position: int, guess: Guess, *, once: bool) -> bool:
        """Score a guess for what is written already; of those of a remote draft one for each position."""
        right = self.accepted[position] == guess.token
        if self._judges_all and (position >= self._late_to or not once):
            self._late.append((guess.confidence, right))
            self._late_to = position + 1
        if not right:  # what builds on it may be on its way
            self.settled = max(self.settled, position + 1)
        return right

    def drop(self) -> None:
        """Forget the pending candidates: another draft takes over."""
        self._pending.clear()
        self._late.clear()
        self._last = (0, -1)
        self.epoch += 1
        self.settled = len(self.accepted)

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
                self.settled = len(self.accepted)
        return scores

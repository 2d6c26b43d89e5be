"""TokenSequence: accepted tokens, and the candidates after them, which two threads share (engine/async_draft.py)."""

from collections.abc import Sequence

from duo.config import MAX_BRANCHES
from duo.speculation.acceptance import MAX_DEEP
from duo.speculation.types import Candidate, Outcome


class TokenSequence:
    """The state of one text, and the rules by which drafted tokens are taken or dropped.

    `accepted` is the prompt and everything the target added; the `pending` candidates continue it. `epoch` counts how
    often the chain was broken, usually because the target contradicted it: a local draft's token from an earlier epoch
    is stale. A remote draft learns of a new epoch late, and detects by itself where the text left its chain; its tokens
    are valid if they were drafted with knowledge of the first `settled` tokens, of which the last contradicted a
    drafted token.

    While the target verifies, a draft may continue likely outcomes besides its chain: at most MAX_BRANCHES, each with
    MAX_DEEP tokens. When one of them comes true, its tokens are the pending candidates of the new epoch.
    """

    def __init__(self, prompt: Sequence[int], n_vocab: int, *, judges_all: bool = True) -> None:
        """`judges_all`: whether unverified candidates are scored by comparison with the target's tokens."""
        self.accepted = list(prompt)
        self.pending: list[Candidate] = []
        self.epoch = 0
        self.settled = len(prompt)
        self._last = (0, -1)  # n_known and position of the last token of a remote draft
        self._late_to = 0  # positions before this one have been scored late
        self.n_vocab = n_vocab
        self._judges_all = judges_all
        self._late: list[tuple[float, bool]] = []
        self._prepared: dict[Outcome, list[Candidate]] = {}  # the tokens that continue each outcome
        self.came_true: Outcome | None = None  # the outcome that began this epoch; None: it began for another reason
        # Of the last commit, where the draft had alternatives: the position of its wrong token in the step, the rank of
        # the right one among these (-1: none of them), and whether the draft has continued this outcome.
        self.contradictions: list[tuple[int, int, bool]] = []

    def offer(self, epoch: int, position: int, candidate: Candidate, n_known: int | None = None) -> bool:
        """Take a drafted token for `position`. False if the draft's chain is wrong and must be reconciled.

        `n_known`: how many accepted tokens a remote draft knew when it made the token; None for a local draft.

        Dropped are tokens that are stale, outside the target's vocabulary, for an accepted position (True, if it is
        equal), or after a gap, where a new epoch begins, so that the draft restarts. A second token for a pending
        position is dropped from a remote draft; from a local one, whose tokens may be translated, it replaces the first
        and what follows.
        """
        if not 0 <= candidate.token < self.n_vocab or self._is_stale(epoch, position, n_known):
            return False
        if position < len(self.accepted):
            return self._score_late(position, candidate, once=n_known is not None)
        index = position - len(self.accepted)
        if index > len(self.pending) and epoch == self.epoch:
            self._begin_epoch()
            self._last = (0, -1)
            self._late.append(
                (candidate.confidence, False)
            )  # otherwise a draft that only leaves gaps would keep its score
        if index > len(self.pending) or (index < len(self.pending) and n_known is not None):
            return False
        self.pending[index:] = [candidate]
        return True

    def prepare(
        self, epoch: int, outcome: Outcome, position: int, candidate: Candidate, n_known: int | None = None
    ) -> bool:
        """Take a token that continues `outcome`, or the candidates if it has come true. False: it is of no use.

        `n_known`: see offer(). What a remote draft prepares is known to follow the pending candidates only if it
        contradicts one of them; when it comes true, it builds on all tokens up to the outcome's.
        """
        n, position_of = len(self.accepted), outcome.position
        if n_known is None:
            is_true = epoch == self.epoch - 1 and outcome == self.came_true
        else:
            is_last = position_of + 1 == self.settled and epoch >= self.epoch - 1
            is_true = position_of < n and self.accepted[position_of] == outcome.token
            is_true = is_true and (is_last or n_known >= self.settled)
        if is_true:
            n_known = None if n_known is None else position_of + 1
            return position <= position_of + MAX_DEEP and self.offer(self.epoch, position, candidate, n_known)
        candidates = self._prepared.get(outcome, [])
        fits = position == position_of + 1 + len(candidates) and len(candidates) < MAX_DEEP
        fits = fits and (bool(candidates) or len(self._prepared) < MAX_BRANCHES) and 0 <= candidate.token < self.n_vocab
        follows = n_known is None or (n_known >= self.settled and position_of < n + len(self.pending))
        if epoch != self.epoch or position_of < n or not (fits and follows):
            return False
        self._prepared[outcome] = [*candidates, candidate]
        return True

    def _is_stale(self, epoch: int, position: int, n_known: int | None) -> bool:
        if n_known is None:
            return epoch != self.epoch
        in_order = self._last < (n_known, position) and n_known <= position
        if in_order:
            self._last = (n_known, position)
        return not in_order or n_known < self.settled

    def _score_late(self, position: int, candidate: Candidate, *, once: bool) -> bool:
        """Score a token for an accepted position; `once`: at most one per position."""
        right = self.accepted[position] == candidate.token
        if self._judges_all and (position >= self._late_to or not once):
            self._late.append((candidate.confidence, right))
            self._late_to = position + 1
        if not right:  # tokens that build on it may be under way
            self.settled = max(self.settled, position + 1)
        return right

    def restart(self) -> None:
        """Begin a new epoch, in which nothing is pending."""
        self.pending.clear()
        self._begin_epoch()

    def _begin_epoch(self, came_true: Outcome | None = None) -> None:
        self.epoch += 1
        self.came_true = came_true
        self._prepared.clear()

    def commit(self, tokens: Sequence[int], n_verified: int = 0) -> list[tuple[float, bool]]:
        """Append the target's tokens. Where they contradict the pending candidates, a new epoch begins.

        The first `n_verified` were verified. Returns (confidence, accepted) of every candidate that is now decided.
        """
        scores, self._late = self._late, []
        self.contradictions.clear()
        for i, token in enumerate(tokens):
            self.accepted.append(token)
            if not self.pending:
                continue
            candidate = self.pending.pop(0)
            if self._judges_all or i < n_verified:
                scores.append((candidate.confidence, candidate.token == token))
            if candidate.token != token:
                outcome = Outcome(len(self.accepted) - 1, token)
                self.pending = self._prepared.get(outcome, [])
                if alternatives := candidate.alternatives:
                    rank = alternatives.index(token) if token in alternatives else -1
                    self.contradictions.append((i, rank, bool(self.pending)))
                self._begin_epoch(outcome)
                self.settled = len(self.accepted)
        n = len(self.accepted)
        self._prepared = {outcome: found for outcome, found in self._prepared.items() if outcome.position >= n}
        return scores

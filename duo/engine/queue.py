"""CandidateQueue: where the draft leaves its guesses and the target its decisions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from duo.spec.policy import Policy, StepCost
from duo.spec.session import Session
from duo.spec.types import Candidates


class CandidateQueue:
    """A Session and a Policy between two threads.

    The lock protects both, and the fields below; the condition tells either side that something changed. Nobody
    holds the lock while a model computes.
    """

    def __init__(
        self, session: Session, policy: Policy, *, drafting: bool, cancel: Callable[[], None] = lambda: None
    ) -> None:
        """With `drafting` False there is no draft, and the target is never kept waiting.

        `cancel` ends the draft's present decode when it has become useless.
        """
        self._cancel = cancel
        self._session = session
        self._policy = policy
        self._changed = threading.Condition(threading.Lock())
        self._drafting = drafting
        self._closed = False
        self._draft_began: float | None = None  # when the token in the making was begun; None: none is
        self._draft_epoch = 0  # and in which epoch

    def close(self) -> None:
        """End the drafting and wake whoever waits. A second call does nothing."""
        with self._changed:
            self._closed = True
            self._drafting = False
            self._changed.notify_all()

    # The target's side

    def accepted_from(self, position: int) -> list[int]:
        """The accepted tokens from `position` on."""
        with self._changed:
            return self._session.accepted[position:]

    def take(self, n_room: int) -> Candidates:
        """The candidates to verify now, after waiting for more if the policy finds it worth while.

        The text has room for `n_room` tokens. A wait ends early when the drafting does, and one that was in vain is
        the last.
        """
        with self._changed:
            if not self._drafting and not self._session.n_pending:
                return Candidates()
            next_s = self._next_s()
            while True:
                decision = self._policy.decide(self._session.confidences(), n_room, next_s)
                if not decision.wait_s:
                    return self._session.candidates(decision.n_verify)
                next_s = self._next_s() if self._wait_for_candidate(decision.wait_s) else math.inf

    def commit(self, tokens: tuple[int, ...], cost: StepCost | None = None) -> None:
        """Add the tokens that the target wrote, at this cost; None if it says nothing."""
        with self._changed:
            scores = self._session.commit(tokens)
            if not self._drafting:
                return
            self._policy.learn_scores(scores)
            if cost is not None:
                self._policy.learn_step(len(tokens), cost)
            if self._draft_began is not None and self._draft_epoch != self._session.epoch:
                self._cancel()
            # Only now: what was learned may be what the draft waits for.
            self._changed.notify_all()

    def _wait_for_candidate(self, seconds: float) -> bool:
        """Wait for one more candidate while there is a draft. False if none came."""
        n_pending, deadline = self._session.n_pending, time.perf_counter() + seconds
        while self._drafting and self._session.n_pending == n_pending:
            if not self._changed.wait(deadline - time.perf_counter()):
                break
        return self._session.n_pending > n_pending

    def _next_s(self) -> float:
        """Seconds until the next candidate can be expected."""
        draft_s = self._policy.costs.draft_s
        if not self._drafting or not draft_s or not self._policy.may_draft(self._session.confidences()):
            return math.inf
        if self._draft_began is None:
            return draft_s
        left_s = self._draft_began + draft_s - time.perf_counter()
        if left_s < -draft_s:  # it has stalled
            return math.inf
        stale = self._draft_epoch != self._session.epoch
        return max(left_s, 0.1 * draft_s) + (draft_s if stale else 0.0)

    # The draft's side

    def wait_for_room(self) -> bool:
        """Sleep until the draft may guess on. False when the drafting has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._policy.may_draft(self._session.confidences()))
            return not self._closed

    def begin(self, n_seen: int) -> tuple[int, list[int]]:
        """The draft begins a token: the epoch, and the accepted tokens from `n_seen` on."""
        with self._changed:
            self._draft_began = time.perf_counter()
            self._draft_epoch = self._session.epoch
            return self._session.epoch, self._session.accepted[n_seen:]

    def publish(self, epoch: int, position: int, token: int, confidence: float, draft_s: float | None) -> bool:
        """Offer a guess that took `draft_s` seconds, None if it says nothing. False if it is of no use.

        See Session.offer.
        """
        with self._changed:
            self._draft_began = None
            if draft_s is not None:
                self._policy.learn_draft(draft_s)
            useful = self._session.offer(epoch, position, token, confidence)
            self._changed.notify_all()
            return useful

    def stop_drafting(self) -> None:
        """Say that no more guesses will come."""
        with self._changed:
            self._drafting = False
            self._changed.notify_all()

"""CandidateQueue: where the draft leaves its guesses and the target its decisions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from duo.spec.session import Session
from duo.spec.types import Candidates


class CandidateQueue:
    """A Session between two threads.

    The lock protects the session and the three flags; the condition tells either side that something changed.
    Nobody holds the lock while a model computes.
    """

    def __init__(self, session: Session, *, drafting: bool) -> None:
        """With `drafting` False there is no draft, and the target is never kept waiting."""
        self._session = session
        self._changed = threading.Condition(threading.Lock())
        self._drafting = drafting
        self._closed = False
        self._draft_s = 0.0

    # Either side

    def accepted_from(self, position: int) -> tuple[int, list[int]]:
        """The epoch, and the accepted tokens from `position` on."""
        with self._changed:
            return self._session.epoch, self._session.accepted[position:]

    def close(self) -> None:
        """End the drafting and wake whoever waits. A second call does nothing."""
        with self._changed:
            self._closed = True
            self._drafting = False
            self._changed.notify_all()

    # The target's side

    def take(self, k: int, wait_s: Callable[[float], float]) -> Candidates:
        """Up to `k` candidates that continue the accepted tokens.

        If there are none but a draft is at work, wait for the first as long as `wait_s` allows, given the seconds
        that a draft token takes. The wait ends early when the drafting does.
        """
        with self._changed:
            if k and not self._session.n_pending and self._drafting and self._draft_s:
                deadline = time.perf_counter() + wait_s(self._draft_s)
                while self._drafting and not self._session.n_pending:
                    if not self._changed.wait(deadline - time.perf_counter()):
                        break
            return self._session.candidates(k)

    def commit(self, tokens: tuple[int, ...]) -> None:
        """Add the tokens that the target wrote."""
        with self._changed:
            self._session.commit(tokens)
            self._changed.notify_all()

    # The draft's side

    def wait_for_room(self, may_draft: Callable[[int], bool]) -> bool:
        """Sleep until the draft may guess on, given how many tokens it is ahead. False when the drafting has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or may_draft(self._session.n_pending))
            return not self._closed

    def publish(self, epoch: int, position: int, token: int, confidence: float, draft_s: float) -> bool:
        """Offer a guess that took `draft_s` seconds. False if it is of no use: see Session.offer."""
        with self._changed:
            self._draft_s = draft_s if not self._draft_s else 0.9 * self._draft_s + 0.1 * draft_s
            useful = self._session.offer(epoch, position, token, confidence)
            self._changed.notify_all()
            return useful

    def stop_drafting(self) -> None:
        """Say that no more guesses will come."""
        with self._changed:
            self._drafting = False
            self._changed.notify_all()

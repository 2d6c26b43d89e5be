"""CandidateQueue: carries drafted tokens to the target's thread, and accepted tokens to the draft's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Lock
from typing import NamedTuple

from duo.engine.drafter import Accepted
from duo.spec.policy import Lookahead
from duo.spec.types import Guess


class Offer(NamedTuple):
    """A drafted token for one position, on its way to the target."""

    epoch: int
    position: int
    guess: Guess
    n_tokens: int  # decoded to make it; 0: the time is not representative
    seconds: float  # that this took
    n_known: int | None = None  # accepted tokens known when it was made; None: all of its epoch
    latency_s: float | None = None  # from the order of a new epoch to its first token, less the time to make it


class Order(NamedTuple):
    """What a remote draft must know: the tokens accepted since the last order, and whether it may continue."""

    epoch: int
    tokens: list[int]
    may_draft: bool


class CandidateQueue:
    """Connects the target's thread with a draft's thread, or with the connection to a remote draft.

    The lock protects all fields; the condition is notified when one has changed. No computation takes place under the
    lock: the target's thread collects offers and learns from them.
    """

    def __init__(self, n_ahead: int, watch: Callable[[int], None] = lambda _: None) -> None:
        """Holds at most `n_ahead` offers, and as many of the previous epoch.

        `watch` is called, under the lock, with the number of pending candidates.
        """
        self._changed = Condition(Lock())
        self._most = 2 * n_ahead + 2
        self._watch = watch
        self._offers: deque[Offer] = deque()
        self._tokens: list[int] = []  # accepted, not yet taken by the draft
        self._epoch = 0
        self._pending: list[float] = []  # confidences of all candidates awaiting verification
        self._lookahead = Lookahead()
        self._open = False
        self._began: tuple[float, int] | None = None  # start time and epoch of the draft's current token
        self._ordered: float | None = None  # when a remote draft was told of this epoch, until its first token arrives

    # The target's side

    def open(self) -> None:
        """Accept offers."""
        with self._changed:
            self._open = True
            self._began = None

    def close(self) -> None:
        """Accept no more offers, and wake both sides. A second call does nothing."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def tell(self, epoch: int, tokens: Sequence[int], lookahead: Lookahead, pending: Sequence[float]) -> bool:
        """Pass on the newly accepted `tokens`, how far to run ahead, and the confidences of pending candidates.

        Returns whether the token that the draft is working on is now stale.
        """
        with self._changed:
            self._tokens += tokens
            self._epoch = epoch
            self._lookahead = lookahead
            fresh = (offer.guess.confidence for offer in self._offers if offer.epoch == epoch)
            self._pending = [*pending, *fresh]
            self._watch(len(self._pending))
            self._changed.notify_all()
            return self._began is not None and self._began[1] != epoch

    def collect(self) -> list[Offer]:
        """What the draft has offered since the last call."""
        with self._changed:
            offers = list(self._offers)
            self._offers.clear()
            return offers

    def wait(self, seconds: float) -> bool:
        """Wait for an offer. False if none arrives within `seconds`, or the queue is closed."""
        end = time.perf_counter() + seconds
        with self._changed:
            while self._open and not self._offers:
                if not self._changed.wait(end - time.perf_counter()):
                    break
            return bool(self._offers)

    @property
    def began(self) -> tuple[float, int] | None:
        """Start time and epoch of the draft's current token; None if it is idle."""
        with self._changed:
            return self._began

    # The draft's side

    def wait_for_room(self) -> bool:
        """Wait until the draft may continue. False once the queue is closed."""
        with self._changed:
            while self._open and not self._lookahead.allows(self._pending):
                self._changed.wait()
            return self._open

    def begin(self) -> Accepted:
        """The draft begins a token."""
        with self._changed:
            self._began = time.perf_counter(), self._epoch
            return Accepted(self._epoch, self._take())

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:
        """Offer a token for which `n_tokens` were decoded in `seconds`. False if its epoch has passed."""
        with self._changed:
            self._began = None
            self._put(Offer(epoch, position, guess, n_tokens, seconds))
            return epoch == self._epoch

    # The connection to a remote draft

    def order(self, latency_s: float) -> Order:
        """What to send to the draft now. Its first token of a new epoch begins `latency_s` later."""
        with self._changed:
            may_draft = self._open and self._lookahead.allows(self._pending)
            if may_draft and (self._began is None or self._began[1] != self._epoch):
                now = time.perf_counter()
                self._ordered = now
                self._began = now + latency_s, self._epoch
            return Order(self._epoch, self._take(), may_draft)

    def publish_remote(self, offer: Offer) -> bool:
        """Offer a received token. False if it is not accepted: closed, an unknown epoch, or too many."""
        now = time.perf_counter()
        with self._changed:
            if not self._open or offer.epoch > self._epoch or len(self._pending) >= self._lookahead.n_ahead:
                return False
            if offer.epoch == self._epoch:
                self._began = now, self._epoch  # the draft is already working on the next one
                if self._ordered is not None:
                    offer = offer._replace(latency_s=max(0.0, now - self._ordered - offer.seconds))
                    self._ordered = None
            return self._put(offer)

    @property
    def may_draft(self) -> bool:
        """Whether the draft may continue."""
        with self._changed:
            return self._open and self._lookahead.allows(self._pending)

    def _put(self, offer: Offer) -> bool:
        if len(self._offers) >= self._most:
            return False
        self._offers.append(offer)
        if offer.epoch == self._epoch:
            self._pending.append(offer.guess.confidence)
            self._watch(len(self._pending))
        self._changed.notify_all()
        return True

    def _take(self) -> list[int]:
        tokens, self._tokens = self._tokens, []
        return tokens

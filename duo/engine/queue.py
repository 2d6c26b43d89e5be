"""CandidateQueue: carries candidates from a draft's thread to the target's, and what was accepted the other way."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duo.spec.policy import Lookahead
from duo.spec.types import Guess


class Offer(NamedTuple):
    """A draft's guess for one position, on its way to the target."""

    epoch: int
    position: int
    guess: Guess
    n_tokens: int  # decoded to make it
    seconds: float  # that took
    n_known: int | None = None  # accepted tokens known where it was made; None: all that there were in its epoch
    latency_s: float | None = None  # from the order of a new epoch to its first guess, less the time to make it


class Order(NamedTuple):
    """What a draft is to know: what was accepted since it last asked, and whether it may go on."""

    epoch: int
    tokens: list[int]
    may_draft: bool


class CandidateQueue:
    """A lock, a deque and a condition between the target's thread and a draft's, which may be on another machine.

    The lock protects all fields; the condition says that one has changed. Nothing is computed and nothing learned under
    the lock: the target's thread collects offers and learns from them.
    """

    def __init__(self, n_ahead: int, watch: Callable[[int], None] = lambda _: None) -> None:
        """Holds `n_ahead` offers and as many of an epoch before, that were on their way.

        `watch` is told, under the lock, how many candidates are pending.
        """
        self._changed = threading.Condition(threading.Lock())
        self._most = 2 * n_ahead + 2
        self._watch = watch
        self._offers: deque[Offer] = deque()
        self._tokens: list[int] = []  # accepted, and not yet taken by the draft
        self._epoch = 0
        self._pending: list[float] = []  # confidences of all candidates that are not accepted or rejected yet
        self._lookahead = Lookahead()
        self._open = False
        self._began: tuple[float, int] | None = None  # when the draft began its present token, and in which epoch
        self._ordered: float | None = None  # when a remote draft was told of the present epoch, until its first guess

    # The target's side

    def open(self) -> None:
        """Candidates may come."""
        with self._changed:
            self._open = True
            self._began = None

    def close(self) -> None:
        """No more will; wakes both sides. A second call does nothing."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def tell(self, epoch: int, tokens: Sequence[int], lookahead: Lookahead, pending: Sequence[float]) -> bool:
        """What the target has accepted since the last time, how far the draft may go on, and what is pending.

        Returns whether the draft is at work on a token that this makes useless.
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
        """What the draft has offered since the last time."""
        with self._changed:
            offers = list(self._offers)
            self._offers.clear()
            return offers

    def wait(self, seconds: float) -> bool:
        """Wait for an offer. False if none came in time, or none can come."""
        end = time.perf_counter() + seconds
        with self._changed:
            while self._open and not self._offers:
                if not self._changed.wait(end - time.perf_counter()):
                    break
            return bool(self._offers)

    @property
    def began(self) -> tuple[float, int] | None:
        """When the draft began the token that it is making, and in which epoch; None if it makes none."""
        with self._changed:
            return self._began

    # The draft's side

    def wait_for_room(self) -> bool:
        """Sleep until the draft may go on. False once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open or self._lookahead.allows(self._pending))
            return self._open

    def begin(self) -> tuple[int, list[int]]:
        """The draft begins a token: the epoch, and the tokens accepted since it last asked."""
        with self._changed:
            self._began = time.perf_counter(), self._epoch
            return self._epoch, self._take()

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:
        """Offer a guess, for which `n_tokens` were decoded in `seconds`. False if its epoch has passed."""
        with self._changed:
            self._began = None
            self._put(Offer(epoch, position, guess, n_tokens, seconds))
            return epoch == self._epoch

    # The side of a remote draft's connection

    def order(self, latency_s: float) -> Order:
        """What the draft is to know now; its first token after a new epoch is expected `latency_s` later."""
        with self._changed:
            may_draft = self._open and self._lookahead.allows(self._pending)
            if may_draft and (self._began is None or self._began[1] != self._epoch):
                now = time.perf_counter()
                self._ordered = now
                self._began = now + latency_s, self._epoch
            return Order(self._epoch, self._take(), may_draft)

    def publish_remote(self, offer: Offer) -> bool:
        """Offer a guess that came over a connection. False if it is of no use here, or there are too many."""
        now = time.perf_counter()
        with self._changed:
            if not self._open or offer.epoch > self._epoch or len(self._pending) >= self._lookahead.n_ahead:
                return False
            if offer.epoch == self._epoch:
                self._began = now, self._epoch  # it is at the next one already
                if self._ordered is not None:
                    offer = offer._replace(latency_s=max(0.0, now - self._ordered - offer.seconds))
                    self._ordered = None
            return self._put(offer)

    @property
    def may_draft(self) -> bool:
        """Whether the draft may go on."""
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

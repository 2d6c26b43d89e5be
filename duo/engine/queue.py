"""CandidateQueue: carries drafted tokens to the target's thread, and accepted tokens to the draft's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from duo.engine.branches import Preparation
from duo.engine.clock import CLOCK, Clock
from duo.engine.drafter import Accepted, Offer
from duo.spec.policy import Lookahead
from duo.spec.types import Guess, Outcome


class Order(NamedTuple):
    """What a remote draft must know: the tokens accepted since the last order, and whether it may continue."""

    epoch: int
    tokens: list[int]
    may_draft: bool


class Decode(NamedTuple):
    """A decode of the draft in progress."""

    since: float  # at its start
    is_stale: bool  # whether it brings no candidate
    n_sequences: int


class CandidateQueue:
    """Connects the target's thread with a draft's thread, or with the connection to a remote draft.

    The lock protects all fields; the condition is notified when one has changed. No computation takes place under the
    lock: the target's thread collects offers and learns from them.
    """

    def __init__(self, n_ahead: int, watch: Callable[[int], None] = lambda _: None, clock: Clock = CLOCK) -> None:
        """Holds at most `n_ahead` offers of the chain, and as many of the previous epoch.

        `watch` is called, under the lock, with the number of pending candidates.
        """
        self._now = clock.now
        self._changed = clock.condition()
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
        self._came_true: Outcome | None = None  # the outcome that began this epoch
        self._outcomes: frozenset[Outcome] = frozenset()  # that the draft's current decode continues
        self._n_verified = 0  # tokens in the text if all candidates that are being verified are accepted; 0: none are
        self._may_prepare = False  # whether the draft may find something to do besides its chain
        self._on_chain = True  # whether the draft's current decode continues its chain,
        self._is_told = False  # and whether tokens were accepted since it began

    # The target's side

    def open(self) -> None:
        """Accept offers."""
        with self._changed:
            self._open = True
            self._began = None
            self._may_prepare = False

    def close(self) -> None:
        """Accept no more offers, and wake both sides. A second call does nothing."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def tell(
        self,
        epoch: int,
        tokens: Sequence[int],
        lookahead: Lookahead,
        pending: Sequence[float],
        came_true: Outcome | None = None,
    ) -> bool:
        """Pass on the newly accepted `tokens`, how far to run ahead, and the confidences of pending candidates.

        `came_true`: the outcome that began this epoch. Returns whether the draft's current decode is now of no use.
        """
        with self._changed:
            self._tokens += tokens
            self._epoch, self._came_true = epoch, came_true
            self._lookahead = lookahead
            if tokens or not lookahead.n_branches:
                self._n_verified, self._may_prepare = 0, False
            self._is_told = self._is_told or bool(tokens)
            fresh = (offer.guess.confidence for offer in self._offers if offer.epoch == epoch and not offer.outcome)
            self._pending = [*pending, *fresh]
            self._watch(len(self._pending))
            self._changed.notify_all()
            return self._is_stale()

    def verifies(self, n_tokens: int) -> None:
        """The target verifies candidates now: if all are accepted, the text has `n_tokens` before its own token."""
        with self._changed:
            if self._lookahead.n_branches:
                self._n_verified, self._may_prepare = n_tokens, True
                self._changed.notify_all()

    def collect(self) -> list[Offer]:
        """What the draft has offered since the last call."""
        with self._changed:
            offers = list(self._offers)
            self._offers.clear()
            return offers

    def wait(self, seconds: float) -> bool:
        """Wait for an offer. False if none arrives within `seconds`, or the queue is closed."""
        end = self._now() + seconds
        with self._changed:
            while self._open and not self._offers:
                if not self._changed.wait(end - self._now()):
                    break
            return bool(self._offers)

    @property
    def current(self) -> Decode | None:
        """The draft's current decode; None if it is idle."""
        with self._changed:
            if self._began is None:
                return None
            is_stale = self._is_stale() or (self._began[1] == self._epoch and not self._on_chain)
            return Decode(self._began[0], is_stale, self._on_chain + len(self._outcomes))

    # The draft's side

    def wait_for_room(self) -> bool:
        """Wait until the draft may continue. False once the queue is closed."""
        with self._changed:
            while self._open and not self._lookahead.allows(self._pending) and not self._may_prepare:
                self._changed.wait()
            return self._open

    def begin(self) -> Accepted:
        """The draft begins a token."""
        with self._changed:
            self._began = self._now(), self._epoch
            self._outcomes, self._may_prepare = frozenset(), False
            self._on_chain, self._is_told = True, False
            may_draft = self._lookahead.allows(self._pending)
            preparation = Preparation(self._lookahead, self._n_verified, may_draft)
            return Accepted(self._epoch, self._take(), preparation=preparation)

    def continues(self, outcomes: Iterable[Outcome], *, on_chain: bool) -> None:
        """The decode that was begun continues these outcomes, and with `on_chain` the draft's chain."""
        with self._changed:
            self._outcomes, self._on_chain = frozenset(outcomes), on_chain

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:
        """Offer a token for which `n_tokens` were decoded in `seconds`. False if its epoch has passed."""
        with self._changed:
            self._began = None
            self._put(Offer(epoch, position, guess, n_tokens, seconds))
            return epoch == self._epoch

    def publish_all(self, epoch: int, offers: Iterable[Offer], *, may_prepare: bool) -> bool:
        """publish() of several sequences. `may_prepare`: whether the draft has more to do besides its chain."""
        with self._changed:
            self._began = None
            for offer in offers:
                self._put(offer)
            self._may_prepare = self._n_verified > 0 and (self._may_prepare or (may_prepare and epoch == self._epoch))
            return epoch == self._epoch

    # The connection to a remote draft

    def order(self, latency_s: float) -> Order:
        """What to send to the draft now. Its first token of a new epoch begins `latency_s` later."""
        with self._changed:
            may_draft = self._open and self._lookahead.allows(self._pending)
            if may_draft and (self._began is None or self._began[1] != self._epoch):
                now = self._now()
                self._ordered = now
                self._began = now + latency_s, self._epoch
            return Order(self._epoch, self._take(), may_draft)

    def publish_remote(self, offer: Offer) -> bool:
        """Offer a received token. False if it is not accepted: closed, an unknown epoch, or too many."""
        now = self._now()
        with self._changed:
            if not self._open or offer.epoch > self._epoch or len(self._pending) >= self._lookahead.n_ahead:
                return False
            if len(self._offers) >= self._most:  # stale ones, too
                return False
            if offer.epoch == self._epoch:
                self._began = now, self._epoch  # the draft is already working on the next one
                if self._ordered is not None:
                    offer = offer._replace(latency_s=max(0.0, now - self._ordered - offer.seconds))
                    self._ordered = None
            self._put(offer)
            return True

    @property
    def may_draft(self) -> bool:
        """Whether the draft may continue."""
        with self._changed:
            return self._open and self._lookahead.allows(self._pending)

    def _put(self, offer: Offer) -> None:
        self._offers.append(offer)
        if offer.epoch == self._epoch and offer.outcome is None:
            self._pending.append(offer.guess.confidence)
            self._watch(len(self._pending))
            self._may_prepare = self._n_verified > 0  # outcomes after this token
        self._changed.notify_all()

    def _is_stale(self) -> bool:
        """Whether the draft's current decode is of no use. One that continues an outcome that came true is."""
        if self._began is None:
            return False
        if self._began[1] == self._epoch:
            return self._is_told and not self._on_chain
        return self._began[1] != self._epoch - 1 or self._came_true not in self._outcomes

    def _take(self) -> list[int]:
        tokens, self._tokens = self._tokens, []
        return tokens

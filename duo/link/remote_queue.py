"""RemoteQueue: a CandidateQueue whose candidates come through a connection."""

from __future__ import annotations

from typing import NamedTuple

from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue, Decode, Drafted
from duo.spec.session import Session
from duo.spec.types import Guess


class Order(NamedTuple):
    """What a remote draft must know: the tokens accepted since the last order, and whether it may continue."""

    epoch: int
    position: int  # tokens in the text before these
    tokens: list[int]
    may_draft: bool


class RemoteQueue(CandidateQueue):
    """Says what to send to the draft, and takes what it sends."""

    def __init__(self, session: Session, metrics: Metrics, n_ahead: int) -> None:
        """Takes at most `n_ahead` candidates, and as many that are stale, before the target's thread looks."""
        super().__init__(session, metrics)
        self._n_most = 2 * n_ahead + 2
        self._told = (0, False)  # epoch and may_draft of the last order
        self._ordered: float | None = None  # when the draft was told of this epoch, until its first token arrives

    def order(self, latency_s: float) -> Order | None:
        """What to send to the draft now; None: nothing. Its first token of a new epoch begins `latency_s` later.

        An idle draft is told nothing, and then all at once.
        """
        with self._changed:
            accepted, position = self._session.accepted, self._n_told
            epoch, may_draft = self._session.epoch, self._allows()
            if not (may_draft or self._told[1]) or (self._told == (epoch, may_draft) and position == len(accepted)):
                return None
            self._told, self._n_told = (epoch, may_draft), len(accepted)
            if may_draft and (self._decode is None or self._decode.epoch != epoch):
                self._ordered = self._now()
                self._decode = Decode(self._ordered + latency_s, epoch, self._n_told, self._n_told)
            return Order(epoch, position, accepted[position:], may_draft)

    def offer(self, epoch: int, position: int, guess: Guess, n_known: int, drafted: Drafted) -> bool:
        """Take a token that was received, made with knowledge of `n_known` tokens. False if it is of no use."""
        now = self._now()
        with self._changed:
            session, n_pending = self._session, len(self._session.pending)
            if not self._is_open or epoch > session.epoch or n_known > len(session.accepted):
                return False
            if n_pending >= self._lookahead.n_ahead or len(self._drafted) >= self._n_most:  # stale ones, too
                return False
            if epoch == session.epoch:
                # It is already working on the next one.
                self._decode = Decode(now, epoch, len(session.accepted), position + 1)
                if self._ordered is not None:
                    drafted = drafted._replace(latency_s=max(0.0, now - self._ordered - drafted.seconds))
                    self._ordered = None
            is_useful = session.offer(epoch, position, guess, n_known)
            self._drafted.append(drafted._replace(is_useful=is_useful))
            self._notify()
            return is_useful

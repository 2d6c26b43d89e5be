"""RemoteQueue: the queue of a remote draft's candidates, which come through a connection."""

from collections.abc import Sequence
from typing import NamedTuple

from duo.engine.async_draft import CandidateQueue, Decode, Drafted, Prepared
from duo.remote.messages import Ahead, Text
from duo.speculation.acceptance import Lookahead
from duo.speculation.types import Candidate


class _Told(NamedTuple):
    """What the last order said, beside tokens and a Lookahead."""

    epoch: int = 0
    may_draft: bool = False
    n_verified: int = 0  # see Text


class RemoteQueue(CandidateQueue):
    """A queue whose candidates come through a connection: says what to send there, and takes what comes."""

    _told, _told_lookahead = _Told(), Lookahead()
    _ordered: float | None = None  # when the draft was told of this epoch, until its first token arrives

    def order(self, serial: int, latency_s: float, *, is_set_up: bool = True) -> Text | None:
        """What to send to the draft now; None: nothing. Its first token of a new epoch begins `latency_s` later.

        An idle draft is told nothing, and then all at once. `is_set_up`: whether the worker drafts as soon as it can;
        if not, the time until it answers is no round trip.
        """
        with self._changed:
            sequence, before, lookahead, known = self._sequence, self._told, self._lookahead, self._told_lookahead
            accepted, position, epoch, may_draft = sequence.accepted, self._n_told, sequence.epoch, self._allows()
            told = _Told(epoch, may_draft, self._n_verified)
            # By the last order it may have paused where it may continue now.
            is_told = told == before and position == len(accepted)
            is_told = is_told and (not may_draft or known.allows([one.confidence for one in sequence.pending]))
            if is_told or not (may_draft or before.may_draft or self._n_verified):
                return None
            is_same = lookahead == known or not lookahead.n_ahead
            self._told, self._n_told, self._told_lookahead = told, len(accepted), known if is_same else lookahead
            decode = self._decode
            if decode is not None and decode.epoch == epoch - 1 and sequence.came_true in decode.outcomes:
                position_now = len(accepted) + len(sequence.pending)  # it goes on with what it has prepared
                self._decode = decode._replace(epoch=epoch, position=position_now, on_chain=True)
            elif may_draft and (decode is None or decode.epoch != epoch or not before.may_draft):  # it had to pause
                now = self._now()
                self._ordered = now if is_set_up else None
                self._decode = Decode(now + latency_s, epoch, self._n_told, self._n_told)
            ahead = None if is_same else Ahead.of(lookahead)
            return Text(serial, epoch, position, accepted[position:], may_draft, self._n_verified, ahead)

    @property
    def is_told_to_draft(self) -> bool:
        """Whether the last order was to continue."""
        return self._told.may_draft

    @property
    def may_draft(self) -> bool:
        """Whether the draft may continue."""
        with self._changed:
            return self._allows()

    def offer(
        self, epoch: int, position: int, candidate: Candidate | None, n_known: int, drafted: Drafted,
        prepared: Sequence[Prepared] = (), late_s: float = 0.0,
    ) -> bool:  # fmt: skip
        """Take what was received of a decode, made with knowledge of `n_known` tokens. False if it is of no use.

        `late_s`: for how long the draft had to end a decode that it could not abort, which is no part of the latency.
        Between two looks of the target's thread it takes as many as may be ahead, and about as many that are stale.
        """
        now = self._now()
        with self._changed:
            sequence, n_ahead, is_useful = self._sequence, self._lookahead.n_ahead, False
            if not self._is_open or epoch > sequence.epoch or n_known > len(sequence.accepted):
                return False
            if len(self._drafted) >= (4 if self._lookahead.n_branches else 2) * n_ahead + 2:
                return False
            if candidate is not None and len(sequence.pending) < n_ahead:
                if epoch == sequence.epoch and self._ordered is not None:
                    latency_s = now - self._ordered - drafted.seconds - late_s
                    drafted = drafted._replace(latency_s=max(0.0, latency_s))
                    self._ordered = None
                is_useful = sequence.offer(epoch, position, candidate, n_known)
            elif not prepared:
                return False
            taken = [each for each in prepared if sequence.prepare(epoch, *each, n_known)]
            if epoch == sequence.epoch or taken:  # it is already working on the next one
                outcomes = frozenset(outcome for outcome, _, _ in prepared)
                self._decode = Decode(now, epoch, len(sequence.accepted), position + 1, candidate is not None, outcomes)
            n_opened = sum(at == outcome.position + 1 for outcome, at, _ in taken)
            is_useful = is_useful or bool(taken)
            self._drafted.append(drafted._replace(is_useful=is_useful, n_prepared=len(taken), n_opened=n_opened))
            self._notify()
            return is_useful

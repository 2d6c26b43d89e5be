"""A draft on another machine in virtual time: the lead's side and the worker's, between which messages take time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, cast

from benchmarks.virtual_clock import VirtualClock
from duo.engine.decoder import Decoder
from duo.engine.drafter import DraftThread
from duo.engine.prepared_outcomes import PreparingDrafter
from duo.engine.recorder import Recorder
from duo.remote.connection import DraftConnection
from duo.remote.drafts import RemoteDraft, RemoteDrafts
from duo.remote.messages import Begin, FromDraft, FromLead, Message, Text, Times
from duo.remote.worker import RemoteTarget
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.sampling import CandidateSampler

T = TypeVar("T")
_ROUNDED = 1e-12


class Wire(Generic[T]):
    """One direction of a link: what is sent arrives `delay_s` later, in order."""

    def __init__(self, clock: VirtualClock, delay_s: float, deliver: Callable[[T], None]) -> None:
        self._clock, self._delay_s, self._deliver = clock, delay_s, deliver
        self._changed, self._sent, self._is_open = clock.condition(), deque[tuple[float, T]](), True
        self._thread = clock.thread(self._run, "wire")
        self._thread.start()

    def send(self, message: T) -> None:
        self._sent.append((self._clock.now() + self._delay_s, message))
        self._changed.notify_all()

    def close(self) -> None:
        self._is_open = False
        self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._is_open:
            left_s = self._sent[0][0] - self._clock.now() if self._sent else math.inf
            if left_s > _ROUNDED:
                self._changed.wait(left_s)
            else:
                self._deliver(self._sent.popleft()[1])


class VirtualLink(RemoteDrafts):
    """The drafts of a lead: one, on a machine that is `latency_s` away and back."""

    def __init__(
        self, clock: VirtualClock, latency_s: float, estimates: DraftEstimates, context: Decoder,
        sampler: CandidateSampler, times: Mapping[int, float],
    ) -> None:  # fmt: skip
        """`times`: what the worker says of its own, in seconds by sequences."""
        super().__init__()
        self.costs, self._estimates = estimates.target, estimates
        self._clock, self._context, self._sampler = clock, context, sampler
        self.calls = cast(Any, SimpleNamespace(put=lambda call: call()))
        self._thread: DraftThread | None = None
        self._text: RemoteTarget | None = None
        self.draft = RemoteDraft(self, "far", "far", self._look)
        wake = cast(Any, SimpleNamespace(set=self._look))
        self._connection = DraftConnection(cast(Any, None), self, self.draft, wake)
        self._there = Wire[FromLead](clock, latency_s / 2, self._hear)
        self._back = Wire[FromDraft](clock, latency_s / 2, self._connection.take)
        self._back.send(Times(dict(times), estimates.aborts))

    def new_estimates(self, model: str) -> DraftEstimates:  # noqa: ARG002
        return self._estimates

    def begin(self) -> None: ...

    def choose(self) -> RemoteDraft:
        return self.draft

    def close(self) -> None:
        self._there.close()
        self._back.close()
        self._stop()

    def _look(self) -> None:
        """See DraftConnection."""
        if (message := self._connection.next_message()) is not None:
            self._there.send(cast(FromLead, message))

    # The worker's side

    def _hear(self, message: FromLead) -> None:
        if isinstance(message, Begin):
            self._stop()
            recorder = Recorder(self._clock)
            send = cast(Callable[[Message], None], self._back.send)
            self._text = RemoteTarget(message, send, self._context.cancel, recorder)
            drafter = PreparingDrafter(
                self._context, self._text, self._sampler, message.n_vocab, recorder, message.tokens
            )
            self._thread = DraftThread(drafter, self._text)
            self._thread.start()
        elif isinstance(message, Text):
            assert self._text is not None
            self._text.update(message)
        else:
            self._stop()

    def _stop(self) -> None:
        thread, self._thread, self._text = self._thread, None, None
        if thread is not None:
            thread.stop()
            if thread.error is not None:
                raise thread.error

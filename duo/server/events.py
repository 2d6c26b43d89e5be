"""Events: what happens in the lead, as server-sent events for clients that watch it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import Request
from starlette.responses import Response

from duo.engine.metrics import SHARED, TRANSLATED, Totals
from duo.engine.request import TextRequest
from duo.engine.statistics import Event
from duo.errors import BusyError, ClosedError
from duo.link.connection import MAX_CONNECTIONS
from duo.server.api import Json
from duo.server.api_error import STOPPING
from duo.server.generation_service import EventStream, GenerationService, event
from duo.spec.policy import Policy

MAX_SUBSCRIBERS = min(16, MAX_CONNECTIONS // 8)  # others need connections as well
POLL_S = 1.0  # more often would take time from the threads that decode, as would a page on their machine
MAX_WAITING = 100  # events that wait for one subscriber, which ends then: it does not read
_POLLS_ALIVE = 15  # after so many, a comment shows that the connection is alive


def lead_state(service: GenerationService, schedule: Json | None) -> Json:
    """The state of a lead, whose model may still be loading. `schedule`: None before the first text."""
    slot, n_texts = service.loaded.slot if service.loaded is not None else None, service.n_texts
    model = draft = None
    if slot is not None:
        target, local = slot.target, slot.draft_model
        name, size = service.model_name, target.n_bytes
        model = {"name": name, "description": target.description, "n_ctx": slot.n_ctx, "size": size}
        if local is not None:
            draft = {"name": local.path.stem, "vocabulary": SHARED if slot.translation is None else TRANSLATED}
    backs = [
        {
            "id": back.number,
            "name": back.name,
            "model": back.model,
            "in_use": back.current is not None,
            "round_trip_ms": 1000 * back.policy.latency_s or None,  # None: it was not measured yet
            "verified": back.n_verified,  # since it connected
            "accepted": back.n_accepted,
        }
        for back in service.drafts.connected
    ]
    return {
        "model": model,
        "draft": draft,
        "lookup": slot is not None and slot.lookup is not None,
        "backs": backs,
        "queue": {"running": min(1, n_texts), "waiting": max(0, n_texts - 1), "limit": service.n_queue},
        "schedule": schedule,
    }


def schedule_state(policy: Policy) -> Json:
    """What a policy decided last. Any thread may call this: the list of changes only grows, or is replaced."""
    changes = policy.chooser.changes
    at_token, reason = (changes[-1].tokens, changes[-1].reason) if changes else (0, "")
    return {"now": policy.schedule.value, "at_token": at_token, "reason": reason}


class TextReader:
    """Reads the metrics of a text while its threads append to them. A reading costs no more as the text gets longer."""

    def __init__(self, number: int, request: TextRequest, started_s: float) -> None:
        """The times of events are since `started_s`. Operations that ended before now are not read."""
        self.request = request
        self.begun = b""  # the event of its beginning, once that was sent
        self._number = number
        self._started_s, self._since_s = started_s, time.perf_counter()
        self._totals = Totals(request.metrics)

    def read(self, policy: Policy | None, *, has_ended: bool) -> Iterator[bytes]:
        """Its events since the last call, once it has begun. `policy`: of the draft in use."""
        metrics, totals, now_s = self.request.metrics, self._totals, time.perf_counter()
        if not self.begun:
            begin_s = metrics.events[0].start if metrics.events else now_s
            counts = {"prompt_tokens": metrics.n_prompt, "cached_tokens": self.request.n_cached}
            self.begun = self._event("text", state="begins", time_ms=self._ms(begin_s), **counts)
            yield self.begun
        spans = [
            {
                "lane": record.lane,
                "name": record.name,
                "start_ms": self._ms(record.start),
                "end_ms": self._ms(record.end),
                "tokens": record.n,
            }
            for record in totals.update()
            if isinstance(record, Event) and record.lane != "branches" and record.end >= self._since_s
        ]
        recent, alone_s = totals.recent(now_s), policy.alone.target(1).value if policy is not None else 0.0
        yield self._event(
            "progress",
            tokens=totals.n_tokens,
            seconds=totals.seconds,  # since the first token
            tokens_per_s=recent.rate if recent is not None else None,
            alone_tokens_per_s=1 / alone_s if alone_s else None,
            draft={"verified": totals.draft.verified, "accepted": totals.draft.accepted},
            lookup={"verified": totals.lookup.verified, "accepted": totals.lookup.accepted},
            accepted_by_position=totals.draft.accept_rate_by_position,
        )
        if spans:
            yield self._event("spans", spans=spans)
        if has_ended:
            yield self._event(
                "text",
                state="ends",
                time_ms=self._ms(totals.last_s or now_s),
                stop=metrics.stop,
                tokens=totals.n_tokens,
                tokens_per_s=totals.tokens_per_s,  # without its first step, as in `timings`
            )

    def _event(self, name: str, **fields: object) -> bytes:
        return event({"id": self._number, **fields}, name)

    def _ms(self, time_s: float) -> float:
        return int(1e6 * (time_s - self._started_s)) / 1000  # round() takes several times as long


class LiveEvents:
    """GET /v1/duo/events. While it has subscribers, one task of the event loop polls what the threads record.

    Its methods are called on the server's thread, except stop().
    """

    def __init__(self, service: GenerationService) -> None:
        self._service = service
        self._started_s = time.perf_counter()
        self._subscribers: set[MemoryObjectSendStream[bytes]] = set()
        self._readers: list[TextReader] = []  # of the texts that have not ended
        self._schedule: Json | None = None
        self._state: Json | None = None  # as sent last
        self._task: asyncio.Task[None] | None = None

    async def events(self, request: Request) -> Response:
        """Send events until the client disconnects. Raises BusyError."""
        if self._service.stopped.is_set():
            raise BusyError(STOPPING)
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise BusyError(f"{MAX_SUBSCRIBERS} clients are receiving events: try again later")
        subscriber, pieces = anyio.create_memory_object_stream[bytes](MAX_WAITING)
        stream = EventStream(pieces, lambda: self._remove(subscriber, pieces))
        if request.method == "HEAD":
            subscriber.close()
            return stream
        subscriber.send_nowait(event(lead_state(self._service, self._schedule), "state"))
        if self._task is None or self._task.done():
            self._begin()
        for reader in self._readers:
            if reader.begun:
                subscriber.send_nowait(reader.begun)
        self._subscribers.add(subscriber)
        return stream

    def stop(self) -> None:
        """End all streams. From any thread."""
        if (task := self._task) is not None:
            with suppress(RuntimeError):  # the server has stopped
                task.get_loop().call_soon_threadsafe(self._end)

    def _begin(self) -> None:
        self._readers = []
        for text, number in self._service.unfinished.copy().items():
            self._add(number, text)
        self._service.on_submit = self._add
        self._state = None  # that of the last poll, before there was no subscriber, is not what this one was sent
        self._task = asyncio.create_task(self._poll())

    def _add(self, number: int, text: TextRequest) -> None:
        self._readers.append(TextReader(number, text, self._started_s))

    def _remove(self, subscriber: MemoryObjectSendStream[bytes], pieces: MemoryObjectReceiveStream[bytes]) -> None:
        pieces.close()
        self._end(subscriber)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._service.on_submit = None
            self._readers = []

    def _end(self, *subscribers: MemoryObjectSendStream[bytes]) -> None:
        """End the streams of these subscribers, by default of all."""
        for subscriber in subscribers or tuple(self._subscribers):
            subscriber.close()
            self._subscribers.discard(subscriber)

    async def _poll(self) -> None:
        try:
            for n in count(1):
                await asyncio.sleep(POLL_S)
                self._look()
                if n % _POLLS_ALIVE == 0:
                    self._send(b": keep-alive\n\n")
        except (BusyError, ClosedError):  # stop(), or the engine was closed
            return
        finally:
            self._end()

    def _look(self) -> None:
        """Send what is new; forget texts that have ended."""
        for reader in self._readers.copy():
            has_ended = reader.request not in self._service.unfinished  # before its records are read
            policy = reader.request.metrics.policy
            if policy is not None:
                self._schedule = schedule_state(policy)
            if reader.request.metrics.n_prompt:  # otherwise it waits, or was cancelled while it did
                for data in reader.read(policy, has_ended=has_ended):
                    self._send(data)
            if has_ended:
                self._readers.remove(reader)
        state = lead_state(self._service, self._schedule)
        if state != self._state:
            self._state = state
            self._send(event(state, "state"))

    def _send(self, data: bytes) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber.send_nowait(data)
            except anyio.WouldBlock:  # its connection may last until it is found to hang
                self._end(subscriber)

"""Events: what happens in the lead, as server-sent events for clients that watch it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duo.engine.request import TextRequest
from duo.errors import BusyError, ClosedError
from duo.link.remote_drafts import RemoteDrafts
from duo.server.access import MAX_REQUESTS
from duo.server.api_error import STOPPING, ApiError
from duo.server.event_data import LeadState, QueueState, ScheduleState, Spans, TextReader, lead_state, schedule_state
from duo.server.generation_service import EventStream, GenerationService
from duo.spec.policy import Policy

MAX_SUBSCRIBERS = min(16, MAX_REQUESTS // 4)  # they are requests in progress, which others need as well
POLL_S = 1.0  # more often would take time from the threads that decode, as would a page on their machine
_ALIVE_S = 15.0
MAX_BYTES = 256 * 1024  # that wait for one subscriber
_ALIVE = b": keep-alive\n\n"


class Subscriber:
    """The events that one client has not been sent yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[bytes, bool]] = deque()  # each with whether it may be dropped
        self._n_bytes = 0
        self._ended = False
        self._changed = asyncio.Event()

    def put(self, data: bytes, *, may_drop: bool = False) -> bool:
        """Add an event. If too much waits, drop what may be dropped, or else end: the client does not read.

        Returns False once it has ended.
        """
        if self._ended:
            return False
        self._waiting.append((data, may_drop))
        self._n_bytes += len(data)
        if self._n_bytes > MAX_BYTES:
            self._waiting = deque(entry for entry in self._waiting if not entry[1])
            self._n_bytes = sum(len(kept) for kept, _ in self._waiting)
        if self._n_bytes > MAX_BYTES:
            self._waiting.clear()
            self._ended = True
        self._changed.set()
        return not self._ended

    def end(self) -> None:
        """End the stream after what waits."""
        self._ended = True
        self._changed.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """What waits, again and again."""
        while self._waiting or not self._ended:
            await self._changed.wait()
            self._changed.clear()
            data = b"".join(data for data, _ in self._waiting)
            self._waiting.clear()
            self._n_bytes = 0
            if data:
                yield data


class LiveEvents:
    """GET /v1/duo/events. While it has subscribers, one task of the event loop polls what the threads record.

    Its methods are called on the server's thread, except stop().
    """

    def __init__(self, service: GenerationService, drafts: RemoteDrafts, name: Callable[[], str]) -> None:
        """`name` returns the model's name for clients, once there is a model."""
        self._service = service
        self._drafts = drafts
        self._name = name
        self._started_s = time.perf_counter()
        self._subscribers: set[Subscriber] = set()
        self._readers: list[TextReader] = []  # of the texts that have not ended
        self._schedule: ScheduleState | None = None
        self._state: LeadState | None = None  # as sent last
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def events(self, request: Request) -> Response:
        """Send events until the client disconnects. Raises ApiError or BusyError."""
        if self._service.stopped.is_set():
            raise BusyError(STOPPING)
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            message = f"{MAX_SUBSCRIBERS} clients are receiving events: try again later"
            raise ApiError(503, message, "unavailable_error")
        subscriber = Subscriber()
        if request.method == "HEAD":
            subscriber.end()
            return EventStream(subscriber.pieces(), lambda: None)
        subscriber.put(_event("state", self._read_state()))
        if self._task is None or self._task.done():
            self._begin()
        for reader in self._readers:
            if reader.is_known:
                subscriber.put(_event("text", reader.begins()))
        self._subscribers.add(subscriber)
        return EventStream(subscriber.pieces(), lambda: self._remove(subscriber))

    def stop(self) -> None:
        """End all streams. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._end)

    def _begin(self) -> None:
        now_s = time.perf_counter()
        self._readers = [TextReader(n, text, self._started_s, now_s) for text, n in self._service.unfinished().items()]
        self._service.on_submit = self._add
        self._state = None  # that of the last poll, before there was no subscriber, is not what this one was sent
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._poll())

    def _add(self, number: int, text: TextRequest) -> None:
        self._readers.append(TextReader(number, text, self._started_s))

    def _remove(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._service.on_submit = None
            self._readers = []

    def _end(self) -> None:
        for subscriber in self._subscribers:
            subscriber.end()

    async def _poll(self) -> None:
        alive_s = time.monotonic()
        try:
            while True:
                await asyncio.sleep(POLL_S)
                self._look()
                if time.monotonic() - alive_s >= _ALIVE_S:
                    alive_s = time.monotonic()
                    self._send(_ALIVE)
        except (BusyError, ClosedError):  # stop(), or the engine was closed
            self._end()
        except Exception:
            self._end()
            raise

    def _look(self) -> None:
        """Send what is new."""
        engine = self._service.loaded
        policy = engine.policy if engine is not None else None
        for reader in self._readers.copy():
            self._look_at(reader, policy)
        if policy is not None:
            self._schedule = schedule_state(policy)
        state = self._read_state()
        if state != self._state:
            self._state = state
            self._send(_event("state", state))

    def _look_at(self, reader: TextReader, policy: Policy | None) -> None:
        """Send what is new about a text; forget it at its end."""
        has_ended = not self._service.is_unfinished(reader.request)  # before its records are read
        policy = reader.request.policy or policy
        if reader.has_begun:
            if not reader.is_known:
                self._send(_event("text", reader.begins()))
            spans = reader.read()
            self._send(_event("progress", reader.progress(policy)))
            if spans:
                self._send(_event("spans", Spans(reader.number, spans)), may_drop=True)
        if has_ended:
            self._readers.remove(reader)
            if reader.has_begun:
                self._send(_event("text", reader.ends()))
            if policy is not None:
                self._schedule = schedule_state(policy)

    def _read_state(self) -> LeadState:
        engine, n_texts = self._service.loaded, self._service.n_texts
        queue = QueueState(min(1, n_texts), max(0, n_texts - 1), self._service.n_queue)
        slot = engine.slot if engine is not None else None
        name = self._name() if engine is not None else ""
        return lead_state(slot, name, self._drafts.connected, queue, self._schedule)

    def _send(self, data: bytes, *, may_drop: bool = False) -> None:
        for subscriber in self._subscribers.copy():
            if not subscriber.put(data, may_drop=may_drop):
                self._subscribers.discard(subscriber)  # its connection may last until it is found to hang


def _event(name: str, document: msgspec.Struct) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(document))

"""Events: what happens in the lead, as server-sent events for clients that watch it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import Request
from starlette.responses import Response

from duo.engine.request import TextRequest
from duo.errors import BusyError, ClosedError
from duo.link.connection import MAX_CONNECTIONS
from duo.server.api import Json
from duo.server.api_error import STOPPING
from duo.server.event_data import TextReader, lead_state, schedule_state
from duo.server.generation_service import EventStream, GenerationService, event
from duo.spec.policy import Policy

MAX_SUBSCRIBERS = min(16, MAX_CONNECTIONS // 8)  # others need connections as well
POLL_S = 1.0  # more often would take time from the threads that decode, as would a page on their machine
MAX_WAITING = 100  # events that wait for one subscriber, which ends then: it does not read
_ALIVE_S = 15.0
_ALIVE = b": keep-alive\n\n"


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
        self._loop: asyncio.AbstractEventLoop | None = None
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
        subscriber.send_nowait(event(self._read_state(), "state"))
        if self._task is None or self._task.done():
            self._begin()
        for reader in self._readers:
            if reader.begun is not None:
                subscriber.send_nowait(event(reader.begun, "text"))
        self._subscribers.add(subscriber)
        return stream

    def stop(self) -> None:
        """End all streams. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._end)

    def _begin(self) -> None:
        now_s = time.perf_counter()
        texts = self._service.unfinished.copy()
        self._readers = [TextReader(n, text, self._started_s, now_s) for text, n in texts.items()]
        self._service.on_submit = self._add
        self._state = None  # that of the last poll, before there was no subscriber, is not what this one was sent
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._poll())

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
        alive_s = time.monotonic()
        try:
            while True:
                await asyncio.sleep(POLL_S)
                self._look()
                if time.monotonic() - alive_s >= _ALIVE_S:
                    alive_s = time.monotonic()
                    self._send(_ALIVE)
        except (BusyError, ClosedError):  # stop(), or the engine was closed
            pass
        finally:
            self._end()

    def _look(self) -> None:
        """Send what is new."""
        engine = self._service.loaded
        for reader in self._readers.copy():
            self._look_at(reader, engine.policy if engine is not None else None)
        state = self._read_state()
        if state != self._state:
            self._state = state
            self._send(event(state, "state"))

    def _look_at(self, reader: TextReader, policy: Policy | None) -> None:
        """Send what is new about a text; forget it at its end."""
        has_ended = reader.request not in self._service.unfinished  # before its records are read
        has_begun = reader.request.metrics.n_prompt > 0  # otherwise it waits, or was cancelled while it did
        policy = reader.request.policy or policy
        if policy is not None:
            self._schedule = schedule_state(policy)
        if has_begun:
            if reader.begun is None:
                self._send(event(reader.begin(), "text"))
            spans = reader.read()
            self._send(event(reader.progress(policy), "progress"))
            if spans:
                self._send(event({"id": reader.number, "spans": spans}, "spans"))
        if has_ended:
            self._readers.remove(reader)
            if has_begun:
                self._send(event(reader.end(), "text"))

    def _read_state(self) -> Json:
        engine, n_texts = self._service.loaded, self._service.n_texts
        queue: Json = {"running": min(1, n_texts), "waiting": max(0, n_texts - 1), "limit": self._service.n_queue}
        slot = engine.slot if engine is not None else None
        name = self._service.model_name if engine is not None else ""
        return lead_state(slot, name, self._service.drafts.connected, queue, self._schedule)

    def _send(self, data: bytes) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber.send_nowait(data)
            except anyio.WouldBlock:  # its connection may last until it is found to hang
                self._end(subscriber)

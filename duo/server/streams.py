"""Streams: how what the target's thread writes reaches a client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.engine.slot import Task
from duo.errors import UsageError
from duo.server.answers import Shape
from duo.server.api import ApiError
from duo.server.scheduler import Busy
from duo.spec.types import Step

PAUSE_S = 0.02  # between two looks at what was written

Ended = Exception | None


class Events:
    """What becomes of a job, from the target's thread to the server's.

    The server's thread is woken for the first event and the last. In between it looks now and then: to be woken for
    every token it would take the interpreter from the target's thread just when that is between two decodes.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Step | Ended] = deque()
        self._wake = asyncio.Event()
        self._begun = False
        self._leaving: asyncio.Task[None] | None = None

    def put(self, event: Step | Ended) -> None:
        """The next one. From any thread."""
        self._events.append(event)
        if not self._begun or not isinstance(event, Step):
            self._begun = True
            with suppress(RuntimeError):  # when the server has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    @asynccontextmanager
    async def while_there(self, request: Request) -> AsyncIterator[None]:
        """Inside the block, next() looks whether the client is still there."""

        async def leave() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self._wake.set()

        self._leaving = asyncio.create_task(leave())
        try:
            yield
        finally:
            self._leaving.cancel()
            self._leaving = None

    async def next(self) -> list[Step | Ended]:
        """The next events, at least one; None is the end. Raises ClientDisconnect."""
        while not self._events:
            if self._leaving is not None and self._leaving.done():
                raise ClientDisconnect
            with anyio.move_on_after(PAUSE_S if self._begun else None):
                await self._wake.wait()
            self._wake.clear()
        return [self._events.popleft() for _ in range(len(self._events))]


class Stream(StreamingResponse):
    """Server-sent events. `close` is called however it ends, even if it never began."""

    def __init__(self, pieces: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        # The last header is for nginx, which would hold them back.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def whole_text(first: list[Step | Ended], events: Events) -> str:
    """The whole text, beginning with the `first` events. Raises what the generation failed of."""
    text, coming = b"", first
    while True:
        for event in coming:
            if not isinstance(event, Step):
                check(event)
                return text.decode("utf-8", "replace")
            text += b"".join(event.text)
        coming = await events.next()


async def stream_text(
    coming: list[Step | Ended], events: Events, shape: Shape, wanted: Task, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """The text as server-sent events, beginning with those that are there."""
    for document in shape.first():
        yield _event(document)
    while True:
        steps = [event for event in coming if isinstance(event, Step) and any(event.text)]
        if steps:
            yield b"".join(_event(shape.step(step)) for step in steps)
        last = coming[-1]
        if not isinstance(last, Step):
            break
        coming = await events.next()
    if isinstance(last, Exception):
        yield _event(_as_api_error(last).body())
    else:
        yield _event(shape.last(wanted))
        if include_usage:
            yield _event(shape.usage(wanted))
    yield b"data: [DONE]\n\n"


def check(event: Step | Ended) -> None:
    """Raises what a generation failed of."""
    if isinstance(event, Exception):
        raise _as_api_error(event)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, Busy):
        return ApiError(503, str(error), "unavailable_error")
    if isinstance(error, UsageError):
        return ApiError(400, str(error))
    return ApiError(500, f"the generation failed: {error}", "server_error")


def _event(document: object) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"

"""Streams: the steps of a text on their way to a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.engine.stream import AsyncSteps
from duo.errors import BusyError, UsageError
from duo.link.guard import ApiError
from duo.server.chunks import Chunks
from duo.spec.types import Step


class Events(AsyncSteps):
    """The steps of a text, on the server's thread, with detection of a disconnect."""

    _disconnect: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def while_connected(self, request: Request) -> AsyncIterator[None]:
        """Inside the block, waiting for steps raises ClientDisconnect when the client has disconnected."""

        async def wait() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.wake()

        self._disconnect = asyncio.create_task(wait())
        try:
            yield
        finally:
            self._disconnect.cancel()
            self._disconnect = None

    async def first(self) -> list[Step] | None:
        """The next steps, before the response has begun. Raises ApiError if the text failed, or ClientDisconnect."""

        def is_disconnected() -> bool:
            return self._disconnect is not None and self._disconnect.done()

        try:
            steps = await self.next(is_disconnected)
        except Exception as error:
            raise as_api_error(error) from None
        if steps is None and is_disconnected():
            raise ClientDisconnect
        return steps

    async def all(self, first: list[Step] | None) -> list[Step]:
        """All steps, beginning with the `first` ones. Raises what first() raises."""
        found, steps = [], first
        while steps is not None:
            found += steps
            steps = await self.first()
        return found


class EventStream(StreamingResponse):
    """Server-sent events. `close` is always called at the end, even if the response never began."""

    def __init__(self, pieces: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        # The last header turns off buffering in nginx.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def stream_text(
    first: list[Step] | None, events: Events, chunks: Chunks, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """The text as server-sent events, beginning with the `first` steps."""
    for document in chunks.begin():
        yield _event(document)
    try:
        steps = first
        while steps is not None:
            if documents := [document for step in steps for document in chunks.push(step)]:
                yield b"".join(map(_event, documents))
            steps = await events.next()
    except Exception as error:  # of the generation: the status has been sent already
        yield _event(as_api_error(error).body())
    else:
        for document in chunks.end(include_usage=include_usage):
            yield _event(document)
    yield b"data: [DONE]\n\n"


def as_api_error(error: BaseException) -> ApiError:
    """The error response for a text that failed."""
    if isinstance(error, BusyError):
        return ApiError(503, str(error), "unavailable_error")
    if isinstance(error, UsageError):
        return ApiError(400, str(error))
    return ApiError(500, f"the generation failed: {error}", "server_error")


def json_response(document: object) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(document), media_type="application/json")


def _event(document: object) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"

"""Streams: the steps of a text on their way to a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.engine.slot import TextRequest
from duo.engine.stream import AsyncSteps
from duo.errors import BusyError, UsageError
from duo.link.guard import ApiError
from duo.server.answers import Shape
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

    async def whole_text(self, first: list[Step] | None) -> str:
        """The whole text, beginning with the `first` steps. Raises what first() raises."""
        pieces, steps = [], first
        while steps is not None:
            pieces += [piece for step in steps for piece in step.pieces]
            steps = await self.first()
        return b"".join(pieces).decode("utf-8", "replace")


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
    first: list[Step] | None, events: Events, shape: Shape, request: TextRequest, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """The text as server-sent events, beginning with the `first` steps."""
    for document in shape.first():
        yield _event(document)
    try:
        steps = first
        while steps is not None:
            if shown := [step for step in steps if any(step.pieces)]:
                yield b"".join(_event(shape.step(step)) for step in shown)
            steps = await events.next()
    except Exception as error:  # of the generation: the status has been sent already
        yield _event(as_api_error(error).body())
    else:
        yield _event(shape.last(request))
        if include_usage:
            yield _event(shape.usage(request))
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

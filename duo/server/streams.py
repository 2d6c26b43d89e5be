"""Streams: how the steps of a text reach a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.engine.slot import TextRequest
from duo.engine.stream import AsyncSteps
from duo.errors import BusyError, UsageError
from duo.link.guard import ApiError
from duo.server.answers import Shape
from duo.spec.types import Step


class Events(AsyncSteps):
    """The steps of a text for the server's thread, which looks whether the client is still there."""

    _leaving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def while_there(self, request: Request) -> AsyncIterator[None]:
        """Inside the block, what waits for a step raises ClientDisconnect when the client has gone."""

        async def leave() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.wake()

        self._leaving = asyncio.create_task(leave())
        try:
            yield
        finally:
            self._leaving.cancel()
            self._leaving = None

    async def first(self) -> list[Step] | None:
        """The first steps. Raises ApiError for what the text failed of, so that it has a status of its own."""
        try:
            return await self._next()
        except ClientDisconnect:
            raise
        except Exception as error:
            raise as_api_error(error) from None

    async def whole_text(self, first: list[Step] | None) -> str:
        """The whole text, beginning with the `first` steps. Raises ApiError, ClientDisconnect."""
        pieces, coming = [], first
        while coming is not None:
            pieces += [piece for step in coming for piece in step.pieces]
            coming = await self.first()
        return b"".join(pieces).decode("utf-8", "replace")

    async def _next(self) -> list[Step] | None:
        def gone() -> bool:
            return self._leaving is not None and self._leaving.done()

        steps = await self.next(gone)
        if steps is None and gone():
            raise ClientDisconnect
        return steps


class EventStream(StreamingResponse):
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


async def stream_text(
    coming: list[Step] | None, events: Events, shape: Shape, request: TextRequest, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """The text as server-sent events, beginning with those that are there."""
    for document in shape.first():
        yield _event(document)
    try:
        while coming is not None:
            steps = [step for step in coming if any(step.pieces)]
            if steps:
                yield b"".join(_event(shape.step(step)) for step in steps)
            coming = await events.next()
    except Exception as error:  # the generation's, whatever it is: the status is sent already
        yield _event(as_api_error(error).body())
    else:
        yield _event(shape.last(request))
        if include_usage:
            yield _event(shape.usage(request))
    yield b"data: [DONE]\n\n"


def as_api_error(error: BaseException) -> ApiError:
    """What a text failed of, as a client is told it."""
    if isinstance(error, BusyError):
        return ApiError(503, str(error), "unavailable_error")
    if isinstance(error, UsageError):
        return ApiError(400, str(error))
    return ApiError(500, f"the generation failed: {error}", "server_error")


def _event(document: object) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"

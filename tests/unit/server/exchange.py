"""A request to an ASGI application whose client may stop reading, send slowly or disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Scope


class Exchange:
    """One request, answered by a task of the running event loop."""

    def __init__(
        self,
        app: ASGIApp,
        path: str = "/v1/completions",
        method: str = "POST",
        **fields: Any,
    ) -> None:
        """`fields` are the whole body; without any, send() brings it."""
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.n_received = 0  # bytes of the body that were read
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn says
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        if fields:
            self.send(json.dumps(fields).encode(), more=False)
        self.task: asyncio.Task[None] = asyncio.create_task(self._run(app, scope))

    def send(self, body: bytes, *, more: bool = True) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def status(self) -> int:
        return int((await self.sent.get())["status"])

    async def event(self) -> dict[str, Any]:
        """The next event of a stream, of which there is one in each message."""
        data = b""
        while not data:
            data = (await self.sent.get())["body"]
        return dict(json.loads(data.removeprefix(b"data: ")))

    async def body(self) -> bytes:
        """What is left of it, when it is complete."""
        await self.task
        left = [self.sent.get_nowait() for _ in range(self.sent.qsize())]
        return b"".join(message.get("body", b"") for message in left)

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        message = await self._incoming.get()
        self.n_received += len(message.get("body", b""))
        return message

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.put_nowait(message)


async def until(holds: Callable[[], object]) -> None:
    """Wait until `holds()`."""

    async def poll() -> None:
        while not holds():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(poll(), 60)

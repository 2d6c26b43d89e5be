"""The WebSocket that backs connect to."""

from __future__ import annotations

import logging
from contextlib import suppress

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from duo.errors import LinkError
from duo.link.backs import Backs
from duo.link.messages import ROUTE, TRY_LATER
from duo.link.worker import Door, Worker
from duo.server.guard import Guard, Rules

log = logging.getLogger("duo.server")


def draft_app(backs: Backs, door: Door, rules: Rules) -> ASGIApp:
    """Nothing but that route."""
    return Guard(Starlette(routes=[draft_route(backs, door)]), rules)


def draft_route(backs: Backs, door: Door) -> WebSocketRoute:
    """The route where backs join."""

    async def serve(socket: WebSocket) -> None:
        await socket.accept()

        async def send(data: bytes) -> None:
            try:
                await socket.send_bytes(data)
            except (WebSocketDisconnect, RuntimeError, OSError) as error:
                raise LinkError(f"it does not read: {type(error).__name__}") from None

        async def receive() -> bytes | str | None:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            data = message.get("bytes")
            return data if data is not None else str(message.get("text"))

        client = socket.client
        worker = Worker(backs, door, send, f"{client.host}:{client.port}" if client else "an unknown place")
        try:
            await worker.run(receive)
        except LinkError:
            return  # it has gone already
        except Exception as error:  # not the back's fault, and no reason to end the lead
            log.error("a fault with the back %s: %r", worker.name, error)
        with suppress(RuntimeError, WebSocketDisconnect, OSError):  # it may have gone meanwhile
            await socket.close(TRY_LATER)

    return WebSocketRoute(ROUTE, serve)

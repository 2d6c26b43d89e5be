"""The WebSocket that remote drafts connect to."""

from __future__ import annotations

import logging
from contextlib import suppress

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from duo.errors import LinkError
from duo.link.admission import Admission
from duo.link.guard import Guard, allowed_hosts
from duo.link.messages import ROUTE, TRY_LATER
from duo.link.remote_draft import RemoteDraft
from duo.link.remote_drafts import RemoteDrafts

log = logging.getLogger("duo.link")


def draft_app(drafts: RemoteDrafts, admission: Admission, host: str) -> ASGIApp:
    """An application with only this route, at the address `host`."""
    return Guard(Starlette(routes=[draft_route(drafts, admission)]), allowed_hosts(host))


def draft_route(drafts: RemoteDrafts, admission: Admission) -> WebSocketRoute:
    """The route that remote drafts connect to."""

    async def serve(socket: WebSocket) -> None:
        await socket.accept()

        async def send(data: bytes) -> None:
            try:
                await socket.send_bytes(data)
            except (WebSocketDisconnect, RuntimeError, OSError) as error:
                raise LinkError(f"cannot send: {type(error).__name__}") from None

        async def receive() -> bytes | str | None:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            data = message.get("bytes")
            return data if data is not None else str(message.get("text"))

        client = socket.client
        draft = RemoteDraft(drafts, admission, send, f"{client.host}:{client.port}" if client else "an unknown address")
        try:
            await draft.run(receive)
        except LinkError:
            return  # it has disconnected
        except Exception:  # not the draft's fault, and the lead can continue
            log.exception("internal error while serving the remote draft %s", draft.name)
        with suppress(RuntimeError, WebSocketDisconnect, OSError):  # it may have disconnected
            await socket.close(TRY_LATER)

    return WebSocketRoute(ROUTE, serve)

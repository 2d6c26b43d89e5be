"""Listener: serves an ASGI application on a port, on a separate thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from duo.errors import UsageError
from duo.link.connection import DEFAULT_LIMITS, Config, Http, Limits, WebSocket
from duo.link.messages import MAX_FROM_DRAFT

log = logging.getLogger("duo.link")

_BACKLOG = 128  # connections that wait to be accepted


class Listener:
    """Listens from construction, serves from `with` to its end."""

    def __init__(self, app: ASGIApp, host: str, port: int, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises UsageError if the address is not available. Port 0: any free port."""
        self._sockets = _bind(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        config = Config(
            app,
            http=Http,
            ws=WebSocket,
            ws_max_size=MAX_FROM_DRAFT,
            ws_ping_interval=5,
            ws_ping_timeout=10,
            ws_per_message_deflate=False,
            h11_max_incomplete_event_size=64 * 1024,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_level="critical",  # its other messages are about clients' errors
            timeout_keep_alive=60,  # Limits.request_s is shorter
            backlog=_BACKLOG,
            timeout_graceful_shutdown=limits.grace_s,
        )
        config.limits = limits
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="duo-http")

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_error)
        await self._server.serve(self._sockets)
        for connection in list(self._server.server_state.connections):  # of clients that read nothing
            connection.transport.abort()
        await asyncio.sleep(0)  # aborted connections close in the next turn

    def close(self) -> None:
        """Wait a few seconds for requests to end, then close the port. A second call does nothing."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        for listening in self._sockets:  # open if the thread was never started
            listening.close()


def _log_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, OSError):  # those are broken connections
        log.error("error in the event loop: %s", context.get("message"), exc_info=error)


def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets listening on all addresses of `host`. Raises UsageError."""
    sockets: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in infos[: 1 if port == 0 else None]:
            sockets.append(socket.create_server(address, family=family, backlog=_BACKLOG))
    except OSError as error:
        for listening in sockets:
            listening.close()
        reason = str(error.strerror).partition(" (")[0]  # socket repeats the address
        raise UsageError(f"cannot listen on {host}:{port}: {reason}") from None
    return sockets

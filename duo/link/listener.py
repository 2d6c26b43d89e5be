"""Listener: serves an ASGI application on a port, on a separate thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from duo.errors import UsageError
from duo.link.connection import DEFAULT_LIMITS, Config, Limits
from duo.link.http import Http
from duo.link.messages import MAX_FROM_DRAFT
from duo.link.websocket import WebSocket

log = logging.getLogger("duo.link")

_ACCEPTED = 64  # connections in one turn of the event loop
_BACKLOG = 1024  # connections that wait to be accepted


class Listener:
    """Listens from construction, serves from `with` to its end."""

    def __init__(self, app: ASGIApp, host: str, port: int, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises UsageError if the address is not available. Port 0: any free port."""
        self._sockets = _bind(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        config = Config(
            app,
            loop="asyncio",  # uvloop reads more in a turn than a connection asks for
            http=Http,
            ws=WebSocket,
            ws_max_size=MAX_FROM_DRAFT,
            ws_ping_interval=5,
            ws_ping_timeout=10,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_level="critical",  # its other messages are about clients' errors
            timeout_keep_alive=limits.idle_s,
            backlog=_ACCEPTED,
            timeout_graceful_shutdown=limits.grace_s,
        )
        config.limits = limits
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), name="duo-http")

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait a few seconds for requests to end, then close the port. A second call does nothing."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        for listening in self._sockets:  # open if the thread was never started
            listening.close()


class _Server(uvicorn.Server):
    """Leaves signals to the main thread, and logs errors of its event loop to duo's log."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_error)
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)  # asyncio has one number for both


def _log_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, OSError):  # those are broken connections
        log.error("error in the event loop: %s", context.get("message"), exc_info=error)


def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets listening on all addresses of `host`. Raises UsageError."""
    sockets: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in infos[: 1 if port == 0 else None]:
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sockets

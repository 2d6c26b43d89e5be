"""Listener: serves an ASGI application on a port, on a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from duo.errors import UsageError
from duo.link.messages import MAX_FROM_BACK

HEADERS_S = 10.0  # to send the head of a request
MOST_CONNECTIONS = 1024
_MAX_HEAD = 64 * 1024  # bytes
_GRACE_S = 3  # for connections to end when the server does


class Listener:
    """Listens from construction, serves from `with` to its end."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        """Raises UsageError if the address cannot be had. Port 0 takes any that is free."""
        self._sockets = _bind(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="websockets-sansio",
            ws_max_size=MAX_FROM_BACK,
            ws_ping_interval=5,
            ws_ping_timeout=10,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEAD,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), name="duo-http")

    def __enter__(self) -> Listener:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let requests end, for a while, and join the thread."""
        self._server.should_exit = True
        self._thread.join()


class _Server(uvicorn.Server):
    """Leaves signals to the main thread."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """Does not wait for ever for the head of a request."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timer when a head has begun, end it when it is complete."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._head_timer is None and (self.cycle is None or self.conn.trailing_data[0]):
            self._head_timer = self.loop.call_later(HEADERS_S, self.transport.close)

    def _unwatch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of `host`. Raises UsageError."""
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
            listening.listen(2048)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sockets

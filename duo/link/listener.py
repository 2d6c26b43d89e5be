"""Listener: serves an ASGI application on a port, on a separate thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from duo.errors import UsageError
from duo.link.messages import MAX_FROM_DRAFT

log = logging.getLogger("duo.link")

HEADERS_S = 10.0  # for a client to send the headers of a request
READ_S = 30.0  # for a client to read some of a response
LINGER_S = 5.0  # for a client to send the rest of a request that was answered early
MOST_CONNECTIONS = 512  # the usual limit of open files is 1,024
_MAX_HEADERS = 64 * 1024  # bytes
_GRACE_S = 3  # for connections to end on shutdown


class Listener:
    """Listens from construction, serves from `with` to its end."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        """Raises UsageError if the address is not available. Port 0: any free port."""
        self._sockets = _bind(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        config = uvicorn.Config(
            app,
            http=_Http,
            ws=_WebSocket,
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
            h11_max_incomplete_event_size=_MAX_HEADERS,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_GRACE_S,
        )
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


def _log_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, OSError):  # those are broken connections
        log.error("error in the event loop: %s", context.get("message"), exc_info=error)


class _WriteTimeout:
    """Mixin for an asyncio protocol: aborts the connection if the peer does not read."""

    loop: asyncio.AbstractEventLoop
    transport: Any
    _write_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        # Not close(), which would wait until everything has been read.
        self._write_timer = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._write_timer)
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._write_timer)
        super().connection_lost(exc)  # type: ignore[misc]


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _WebSocket(_WriteTimeout, WebSocketsSansIOProtocol):
    """Stops reading, and so answering pings, while the peer does not read."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        if event.data or event.fin:  # empty fragments would accumulate
            super().handle_cont(event)


class _Http(_WriteTimeout, H11Protocol):
    """Limits the time for the headers of a request, and for the rest of one that was answered early."""

    _headers_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        self._time_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.SEND_BODY:
            _cancel(self._rest_timer)
        self._time_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # answered before it was received
            self._rest_timer = self.loop.call_later(LINGER_S, self.transport.close)
        self._time_headers()  # those of the next request may have begun already

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._headers_timer)
        super().connection_lost(exc)

    def _time_headers(self) -> None:
        """Start the timer at the beginning of the headers, cancel it at their end."""
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._headers_timer)
            self._headers_timer = None
        elif self._headers_timer is None and (self.cycle is None or self.conn.trailing_data[0]):
            self._headers_timer = self.loop.call_later(HEADERS_S, self.transport.close)


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
            listening.listen(128)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sockets

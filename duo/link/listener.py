"""Listener: serves an ASGI application on a port, on a thread of its own."""

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

HEADERS_S = 10.0  # to send the head of a request
READ_S = 30.0  # to read some of what was sent
LINGER_S = 5.0  # for the rest of a request that has been answered
MOST_CONNECTIONS = 512  # a process may usually have 1,024 files
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
            log_level="critical",  # what it has to say is about clients, and theirs to see
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

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Let requests end, for a while, and join the thread. A second call does nothing."""
        self._server.should_exit = True
        self._thread.join()


class _Server(uvicorn.Server):
    """Leaves signals to the main thread, and says what goes wrong in its loop to duo's log."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_fault)
        await super().serve(sockets)


def _log_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, OSError):  # connections break
        log.error("a fault in the event loop: %s", context.get("message"), exc_info=error)


class _Patience:
    """For a protocol of asyncio's: does not wait for ever for a peer that does not read."""

    loop: asyncio.AbstractEventLoop
    transport: Any
    _write_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is written to."""
        super().pause_writing()  # type: ignore[misc]
        # Not close(), which would wait until all is read.
        self._write_timer = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        self._be_patient()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._be_patient()
        super().connection_lost(exc)  # type: ignore[misc]

    def _be_patient(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _WebSocket(_Patience, WebSocketsSansIOProtocol):
    """Does not read, and so answer pings, while nobody reads the answers."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        if event.data or event.fin:  # empty pieces of a message would pile up
            super().handle_cont(event)


class _Http(_Patience, H11Protocol):
    """Does not wait for ever for the head of a request either, or for the end of one that is answered."""

    _head_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._rest_timer is not None and self.conn.their_state is not h11.SEND_BODY:
            self._rest_timer.cancel()
            self._rest_timer = None
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # it was answered before it was read
            self._rest_timer = self.loop.call_later(LINGER_S, self.transport.close)

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
            listening.listen(128)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sockets

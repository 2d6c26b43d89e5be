"""Listener: serves an ASGI application on a port, with limits on what a client can make uvicorn do."""

import asyncio
import logging
import math
import resource
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from duo.errors import UsageError

log = logging.getLogger("duo.remote")

_BACKLOG = 128  # connections that wait to be accepted
# Bytes that the system keeps for a client that does not read: megabytes, if it may choose, which are 20,000 tokens.
_UNREAD = 2**16
MAX_MESSAGE = 64 * 1024  # bytes of a WebSocket message; the largest is the first one of a remote draft
_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # usually 1,024; each connection is an open file
MAX_CONNECTIONS = 512 if _FILES == resource.RLIM_INFINITY else min(512, _FILES // 2)


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take. Times in seconds."""

    n_connections: int = MAX_CONNECTIONS
    request_s: float = 30.0  # to send the head of the next request, or its body, also after an early answer
    read_s: float = 30.0  # to read some of a response
    hello_s: float = 5.0  # for a remote draft to send its first message, or to answer the end of its WebSocket
    grace_s: int = 3  # for connections to end on shutdown


DEFAULT_LIMITS = Limits()
_PROBE_S = 1.0  # between two interim answers to a client that may have left


class Config(uvicorn.Config):
    """uvicorn's, which each connection gets, with the limits."""

    limits: Limits


class LimitedServer(uvicorn.Server):
    """uvicorn's, which looks at the time of each connection ten times a second."""

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn."""
        now, connections = asyncio.get_running_loop().time(), list[Any](self.server_state.connections)
        for connection in connections:
            connection.check(now)
        return await super().on_tick(counter)


class Connection(asyncio.Protocol):
    """Mixin for uvicorn's protocols: limits their number, what is read at a time, and the time of writes."""

    config: Config
    loop: asyncio.AbstractEventLoop
    transport: Any
    connections: set[Any]
    since = 0.0  # when it began to wait for the client
    _n_read: int  # bytes
    _n_unread: float = math.inf  # bytes of an answer that the client has left to read since
    _unread_since = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the client and not for the application."""
        raise NotImplementedError

    def connection_made(self, transport: Any) -> None:
        self.since = self.loop.time()
        transport.max_size = self._n_read  # asyncio's: what is read in one turn, before other connections have theirs
        transport.set_write_buffer_limits(high=0)  # pause_writing() as soon as the client does not read
        super().connection_made(transport)
        make_room(self.connections, self.config.limits.n_connections)

    def resume_writing(self) -> None:
        self._n_unread = math.inf
        super().resume_writing()

    def check(self, now: float) -> None:
        """Abort the connection if the client reads nothing for too long."""
        n = self.transport.get_write_buffer_size()
        if not n or n < self._n_unread:
            self._n_unread, self._unread_since = n or math.inf, now
        elif now - self._unread_since > self.config.limits.read_s:
            self.transport.abort()  # not close(), which would wait until everything has been read


class Http(Connection, H11Protocol):  # type: ignore[misc]  # its Config has limits
    """HTTP/1.1."""

    _n_read = 4096
    _phase: tuple[Any, ...] = ()
    _lingers = False  # all is sent; what comes is read until the client ends
    _probe_s = math.inf  # when to see whether a client that sends no more has left

    @property
    def _is_receiving(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    @property
    def is_waiting(self) -> bool:
        return self._is_receiving or self.flow.write_paused or self._lingers

    def connection_made(self, transport: Any) -> None:
        self._close_now, transport.close = transport.close, self._close
        super().connection_made(transport)

    def _close(self) -> None:
        """Close the connection; if the client still sends, only after that: a reset could overtake the answer."""
        if self._lingers or self.conn.their_state not in (h11.SEND_BODY, h11.ERROR) or self.transport.is_closing():
            self._close_now()
        else:
            self._lingers = True
            try:
                self.transport.write_eof()
            except OSError:  # the client has left
                self._close_now()
                return
            self.transport.resume_reading()
            self._note_phase()

    def check(self, now: float) -> None:
        """Close the connection if the client does not send what it has to, or may have left."""
        super().check(now)
        if (self._is_receiving or self._lingers) and now - self.since > self.config.limits.request_s:
            self._close_now()
        elif now >= self._probe_s and self.conn.our_state is h11.SEND_RESPONSE:  # later, an answer has the same effect
            self._probe_s = now + _PROBE_S
            self._probe()

    def _note_phase(self) -> None:
        """The time that the client has begins anew with each phase of each request."""
        phase = self.cycle, self.conn.their_state, self.conn.our_state, self._lingers
        if phase != self._phase:
            self._phase, self.since = phase, self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Handle what has come; nothing, after the last answer."""
        if not self._lingers:
            super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the end of what the client sends: it may still read the answer, or have left."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_complete:
            return False
        cycle.keep_alive = False
        self._probe_s = self.loop.time() + 3 * _PROBE_S
        return True

    def _probe(self) -> None:
        """Send an interim answer, at which the system of a client that has left resets the connection."""
        if self.conn.their_http_version == b"1.0":  # knows no interim answers
            self.transport.abort()
        else:
            answer = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(answer))

    def handle_events(self) -> None:
        """Handle what has been received."""
        super().handle_events()
        self._note_phase()

    def on_response_complete(self) -> None:
        """The end of a response, from which on the rest of the request's body is awaited."""
        super().on_response_complete()
        self._note_phase()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the body of a request that is being answered
            self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Continue as a WebSocket."""
        self.transport.close = self._close_now
        super().handle_websocket_upgrade(event)
        if self.flow.write_paused:
            self.transport.get_protocol().pause_writing()


class WebSocket(Connection, WebSocketsSansIOProtocol):  # type: ignore[misc]
    """A WebSocket for bytes."""

    _n_read = 512  # each frame costs much time, and may have no more than 6 bytes
    _is_admitted = False  # the application has sent something

    @property
    def is_waiting(self) -> bool:
        return not self._is_admitted or self.close_sent or not self.writable.is_set()

    def connection_made(self, transport: Any) -> None:
        self.close_timeout = self.config.limits.hello_s
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:  # uvicorn does not answer what websockets cannot parse
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.transport.close()
        elif not self.handshake_complete:
            self.read_paused = True  # until the application has accepted it: no frame can come earlier
            self.transport.pause_reading()

    def handle_text(self, event: Frame) -> None:
        """Handle text as bytes: no message is text, and uvicorn fails at invalid UTF-8 before a close frame."""
        self.handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """Handle a fragment."""
        if event.data or event.fin:  # empty fragments would accumulate
            super().handle_cont(event)

    def pause_writing(self) -> None:
        """See BaseProtocol. While the client does not read, its pings are not answered, either."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)
        self._is_admitted |= message["type"] == "websocket.send"


def make_room(connections: Iterable[Connection], n_max: int) -> None:
    """If there are more than `n_max`, abort the one that has waited longest. One that is being answered stays."""
    # An aborted one is in the set until the next turn of the event loop.
    present = [c for c in connections if not c.transport.is_closing() or c.transport.get_write_buffer_size()]
    waiting = [connection for connection in present if connection.is_waiting]
    if len(present) > n_max and waiting:
        min(waiting, key=lambda connection: connection.since).transport.abort()


class Listener:
    """Listens from construction, serves on a thread of its own from `with` to its end."""

    def __init__(self, app: ASGIApp, host: str, port: int, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises UsageError if the address is not available. Port 0: any free port."""
        self._sockets = _bind(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        config = Config(
            app,
            http=Http,
            ws=WebSocket,
            ws_max_size=MAX_MESSAGE,
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
        self._server = LimitedServer(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="duo-http")

    def __enter__(self) -> "Listener":
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
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)
            # asyncio sets it only for sockets whose protocol is given (findings/asyncio-nagle.sh).
            sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        for listening in sockets:
            listening.close()
        reason = str(error.strerror).partition(" (")[0]  # socket repeats the address
        raise UsageError(f"cannot listen on {host}:{port}: {reason}") from None
    return sockets

"""Connection: what an HTTP connection and a WebSocket have in common, and the limit on their number."""

from __future__ import annotations

import asyncio
import json
import math
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvicorn

from duo.link.guard import error_body

_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # usually 1,024; each connection is an open file
MAX_CONNECTIONS = 512 if _FILES == resource.RLIM_INFINITY else min(512, _FILES // 2)


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take. Times in seconds."""

    n_connections: int = MAX_CONNECTIONS
    idle_s: int = 60  # between two requests of a connection
    headers_s: float = 10.0  # for a client to send the headers of a request
    body_s: float = 30.0  # to send its body
    linger_s: float = 5.0  # to send the rest of a request that was answered early
    read_s: float = 30.0  # to read some of a response
    close_s: float = 5.0  # to answer the end of a WebSocket
    hello_s: float = 5.0  # for a remote draft to send its first message
    grace_s: int = 3  # for connections to end on shutdown


DEFAULT_LIMITS = Limits()


class Config(uvicorn.Config):
    """uvicorn's, which each connection gets, with the limits."""

    limits: Limits


class Connection(asyncio.BufferedProtocol):
    """Mixin for uvicorn's protocols: limits the time of writes, the work in one turn of the event loop, and the number.

    A BufferedProtocol says how much is read in one turn: few bytes, because they are handled before other connections.
    """

    config: Config
    loop: asyncio.AbstractEventLoop
    transport: Any
    connections: set[Any]
    client: tuple[str, int] | None
    since = 0.0  # when it began to wait for the client
    _n_read: int  # bytes
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """See BaseProtocol."""
        self._buffer = bytearray(self._n_read)
        self.since = self.loop.time()
        transport.set_write_buffer_limits(high=0)  # pause_writing() as soon as the client does not read
        super().connection_made(transport)
        make_room(self.connections, self.config.limits.n_connections)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        """See BufferedProtocol."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See BufferedProtocol."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        super().data_received(data)  # type: ignore[misc]

    def pause_writing(self) -> None:
        """See BaseProtocol."""
        super().pause_writing()
        self._time_reader()

    def resume_writing(self) -> None:
        """See BaseProtocol."""
        cancel(self._write_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See BaseProtocol."""
        cancel(self._write_timer)
        super().connection_lost(exc)

    def _time_reader(self, n_before: float = math.inf) -> None:
        """Abort the connection if the client has read nothing since `n_before` bytes were left."""
        n_left = self.transport.get_write_buffer_size()
        if n_left < n_before:
            self._write_timer = self.loop.call_later(self.config.limits.read_s, self._time_reader, n_left)
        else:
            self.transport.abort()  # not close(), which would wait until everything has been read

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the client and not for the application."""
        raise NotImplementedError

    @property
    def is_gone(self) -> bool:
        """Whether it ends in this turn of the event loop."""
        return bool(self.transport.is_closing() and self.transport.get_write_buffer_size() == 0)


def make_room(connections: Iterable[Connection], n_max: int) -> None:
    """If there are more than `n_max`, close those that have waited longest, first of the address with most of them.

    One whose request is being answered stays: the newest connection, which waits, is closed instead.
    """
    present = [connection for connection in connections if not connection.is_gone]
    if len(present) <= n_max:
        return
    waiting = [connection for connection in present if connection.is_waiting]
    n_of = Counter(_address(connection) for connection in waiting)
    waiting.sort(key=lambda connection: (-n_of[_address(connection)], connection.since))
    for connection in waiting[: max(1, len(waiting) // 8)]:  # several, because this takes a millisecond
        connection.transport.abort()


def refusal(status: HTTPStatus, fault: str) -> bytes:
    """The response to what is not a request."""
    body = json.dumps(error_body(status, f"invalid HTTP request: {fault}")).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def cancel(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer is not None:
        timer.cancel()


def _address(connection: Connection) -> str | None:
    return connection.client[0] if connection.client is not None else None

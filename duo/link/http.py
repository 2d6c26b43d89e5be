"""Http: uvicorn's protocol for HTTP/1.1, with limits on what a client can make it do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from duo.link.connection import Connection, cancel, refusal

_MAX_HEAD = 64 * 1024  # bytes of a request that are not its body
_MAX_HEADERS = 128  # as in websockets


class _Fault(Exception):
    """A request that is refused."""


class Http(Connection, HttpToolsProtocol):  # type: ignore[misc]  # both end a connection at its EOF
    """Reads one request at a time. What comes after a request that is not answered yet is ignored, and ends it all."""

    _n_read = 4096
    _headers_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    _in_headers = False
    _in_body = False
    _n_head = 0  # bytes since the last piece of a body
    _is_deaf = False  # all that comes is ignored

    @property
    def is_waiting(self) -> bool:
        """See Connection."""
        is_answering = self._is_unanswered and not (self.cycle.disconnected or self.cycle.more_body)
        return not is_answering or self.flow.write_paused

    @property
    def _is_unanswered(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """See BaseProtocol."""
        super().connection_made(transport)
        self._time_headers()

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        if self._is_deaf:
            return
        self._n_head += len(data)
        end = None  # of a request for an upgrade
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            end = upgrade.args[0]
        except httptools.HttpParserError as error:
            fault = error.__context__  # raised in a callback
            if fault is not None and not isinstance(fault, _Fault):
                raise
            self._refuse(HTTPStatus.BAD_REQUEST, str(fault or error))
        if end is not None and self._should_upgrade():
            self.handle_websocket_upgrade()
            return
        if end is not None:
            self._ignore_upgrade(data[end:])
        elif self._n_head > _MAX_HEAD and not self._is_deaf:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"its head is larger than {_MAX_HEAD} bytes")
        self._time_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """See BaseProtocol."""
        cancel(self._headers_timer)
        cancel(self._rest_timer)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The end of a response."""
        super().on_response_complete()
        self.since = self.loop.time()
        if self._is_deaf:
            self._hang_up()
        elif self._in_body:  # answered before it was received
            self._rest_timer = self.loop.call_later(self.config.limits.linger_s, self.transport.close)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_unanswered:
            raise _Fault("an earlier request has not been answered yet")
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is ignored."""
        if self._in_headers:
            if len(self.headers) == _MAX_HEADERS:
                raise _Fault(f"it has more than {_MAX_HEADERS} headers")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The end of the headers."""
        self._check()
        self._in_headers = False
        self._n_head = 0
        if not self.parser.should_upgrade() or self._should_upgrade():
            super().on_headers_complete()
            self._in_body = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._n_head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of the request."""
        if not self.parser.should_upgrade():  # see _ignore_upgrade
            super().on_message_complete()
        self._in_body = False
        self._n_head = 0
        cancel(self._rest_timer)

    def _check(self) -> None:
        """What the parser does not check. Raises _Fault."""
        version = self.parser.get_http_version()
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        encodings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if version not in ("1.0", "1.1"):
            raise _Fault(f"its version is {version}, not 1.0 or 1.1")
        if n_hosts > 1 or (n_hosts == 0 and version == "1.1"):
            raise _Fault(f"it has {n_hosts} Host headers")
        if encodings and (encodings != [b"chunked"] or version == "1.0"):
            raise _Fault("its Transfer-Encoding is not supported")
        try:
            path = httptools.parse_url(self.url).path
        except httptools.HttpParserInvalidURLError:
            path = None
        if not path or not path.isascii() or self.parser.get_method() == b"CONNECT":
            raise _Fault("its target is not a path")

    # Upgrades

    def _should_upgrade(self) -> bool:
        """Whether it is a WebSocket's handshake. Other requests are answered as if they asked for no upgrade."""
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        is_plain = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1" and not has_body
        return is_plain and super()._should_upgrade()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request again without its Upgrade header, with which the parser takes it to have no body."""
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([first, *headers, b"", rest]))

    def handle_websocket_upgrade(self) -> None:
        """Continue as a WebSocket."""
        cancel(self._headers_timer)
        cancel(self._write_timer)
        super().handle_websocket_upgrade()
        if self.flow.write_paused:
            self.transport.get_protocol().pause_writing()

    # Limits

    def _time_headers(self) -> None:
        """Start the timer at the beginning of the headers, cancel it at their end."""
        if self.cycle is not None and not self._in_headers:
            cancel(self._headers_timer)
            self._headers_timer = None
        elif self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self.config.limits.headers_s, self.transport.close)

    def _refuse(self, status: HTTPStatus, fault: str) -> None:
        """Answer that this is not a request, unless it is being answered already, and hang up."""
        if self._is_unanswered and not self._in_body:  # the fault is in what follows
            self._is_deaf = True
            return
        if not self._in_body or not self.cycle.response_started:
            self.transport.write(refusal(status, fault))
        if self._in_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._hang_up()

    def _hang_up(self) -> None:
        """Let the client end the connection: a close() with unread data may destroy the response on its way."""
        self._is_deaf = True
        self.flow.resume_reading()
        with suppress(OSError):  # it may have ended already
            self.transport.write_eof()
        self._rest_timer = self.loop.call_later(self.config.limits.linger_s, self.transport.close)

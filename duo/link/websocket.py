"""WebSocket: uvicorn's protocol, with limits on what a client can make it do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from duo.link.connection import Connection, refusal

_MAX_FRAMES = 64  # before the application has sent anything


class WebSocket(Connection, WebSocketsSansIOProtocol):  # type: ignore[misc]  # both end a connection at its EOF
    """Stops reading while the client does not read, and takes few frames before the application has sent anything."""

    _n_read = 512  # each frame costs much time, and may have no more than 6 bytes
    _n_frames = 0
    _is_admitted = False  # the application has sent something

    @property
    def is_waiting(self) -> bool:
        """See Connection."""
        return not self._is_admitted or self.close_sent or not self.writable.is_set()

    def connection_made(self, transport: Any) -> None:
        """See BaseProtocol."""
        self.close_timeout = self.config.limits.close_s
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        super().data_received(data)
        if not self.handshake_initiated:  # uvicorn does not answer what websockets cannot parse
            self.transport.write(refusal(HTTPStatus.BAD_REQUEST, "its WebSocket handshake is not valid"))
            self.transport.close()
        elif not self.handshake_complete:
            self.transport.pause_reading()  # until the application has accepted it: no frame can come earlier

    def handle_events(self) -> None:
        """Handle frames."""
        self._n_frames += len(self.conn.events)
        if self._n_frames > _MAX_FRAMES and not self._is_admitted:
            self._fail(CloseCode.POLICY_VIOLATION, "too many frames before the first answer")
        else:
            super().handle_events()

    def handle_text(self, event: Frame) -> None:  # noqa: ARG002
        """Refuse text: no message is text, and uvicorn fails at invalid UTF-8 before a close frame."""
        self._fail(CloseCode.UNSUPPORTED_DATA, "text instead of bytes")

    def handle_cont(self, event: Frame) -> None:
        """Handle a fragment."""
        if event.data or event.fin:  # empty fragments would accumulate
            super().handle_cont(event)

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._resume_reading()
        self._is_admitted |= message["type"] == "websocket.send"

    def pause_writing(self) -> None:
        """See BaseProtocol. While the client does not read, its pings are not answered, either."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """See BaseProtocol."""
        super().resume_writing()
        self._resume_reading()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def _resume_reading(self) -> None:
        if not self.read_paused and self.writable.is_set():
            self.transport.resume_reading()

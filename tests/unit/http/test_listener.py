"""Connections whose clients do not read, and frames that are invalid, incomplete or too long."""

import errno
import time
from contextlib import suppress
from unittest.mock import Mock

import h11
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from duo.http.guard import ROUTE
from duo.http.listener import DEFAULT_LIMITS, MAX_MESSAGE, Connection, Http, Limits, Listener
from tests.raw_http import connect as connect_raw
from tests.raw_http import handshake, read_answer
from tests.unit.engine.helpers import until
from tests.unit.remote.workers import Stage

TOO_BIG, TOO_MANY = 1009, 1008


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for data in socket.iter_bytes():
        await socket.send_bytes(data)


def test_a_websocket_lasts_longer_than_a_request_may_take() -> None:
    limits = Limits(request_s=1.0)
    listener = Listener(Starlette(routes=[WebSocketRoute("/", echo)]), "127.0.0.1", 0, limits)
    with listener, connect(f"ws://127.0.0.1:{listener.port}/", proxy=None) as back:
        time.sleep(2 * limits.request_s)
        back.send(b"still here")
        assert back.recv(60) == b"still here"


INVALID = {
    "reserved bits": b"\xf2\x80\0\0\0\0",
    "not masked": b"\x82\x01x",
    "unknown opcode": b"\x83\x80\0\0\0\0",
    "length of 2**64": b"\x82\xff" + b"\xff" * 8 + bytes(4),
    "text": b"\x81\x82\0\0\0\0ab",
    "invalid UTF-8 and an end": b"\x81\x82\0\0\0\0\xff\xfe\x88\x80\0\0\0\0",
    "text in fragments after an end": b"\x88\x80\0\0\0\0\x01\x81\0\0\0\0a\x80\x81\0\0\0\0b",
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_frames_end_the_connection(
    stage: Stage, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect_raw(stage, handshake()) as connection, suppress(ConnectionError):
        assert read_answer(connection)[0] == 101
        connection.sendall(INVALID[name])
        while connection.recv(4096):
            """Until the lead closes it."""
    until(lambda: stage.drafts.counts)
    assert {record.name for record in caplog.records} <= {"duo.remote"}, "only what the lead itself logs"
    assert capfd.readouterr() == ("", "")


LONG: dict[str, bytes | list[bytes]] = {
    "one frame": bytes(MAX_MESSAGE + 1),
    "two frames": [bytes(40_000)] * 2,
    "many frames": [b"\0"] * 66_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_message_that_is_too_long_is_not_read_to_its_end(stage: Stage, name: str) -> None:
    with connect(f"ws://127.0.0.1:{stage.port}{ROUTE}", compression=None, max_size=None, proxy=None) as back:
        with suppress(ConnectionClosed):
            back.send(LONG[name])
        with pytest.raises(ConnectionClosed) as closed:
            back.recv(60)
    until(lambda: stage.drafts.counts)
    # The code may get lost on its way.
    assert closed.value.rcvd is None or closed.value.rcvd.code in (TOO_BIG, TOO_MANY)


@pytest.mark.parametrize(
    ("left", "aborted"), [([100, 90, 10], False), ([100, 100], True), ([100, 90, 95], True)], ids=str
)
def test_a_client_is_disconnected_if_it_reads_nothing_for_a_while(left: list[int], aborted: bool) -> None:
    connection, read_s = Connection(), DEFAULT_LIMITS.read_s
    connection.config, connection.transport = Mock(limits=DEFAULT_LIMITS), Mock()
    connection.transport.get_write_buffer_size.side_effect = [0, *left]
    for i in range(len(left) + 1):
        connection.check(i * (read_s + 0.1))
    assert connection.transport.abort.called is aborted


def test_a_client_that_has_left_before_the_end_of_a_refusal_is_no_error() -> None:
    transport, close = Mock(**{"is_closing.return_value": False}), Mock()
    transport.write_eof.side_effect = OSError(errno.ENOTCONN, "not connected")
    connection = Mock(_lingers=False, transport=transport, _close_now=close)
    connection.conn.their_state = h11.ERROR
    Http._close(connection)
    close.assert_called_once_with()
    transport.resume_reading.assert_not_called()

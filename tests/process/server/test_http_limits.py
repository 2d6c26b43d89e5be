"""What one client can keep from others: connections, turns of the event loop, and handshakes that never end."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duo.link import connection as connection_module
from duo.link import http as http_module
from duo.link import remote_draft as remote_draft_module
from duo.link import websocket as websocket_module
from duo.link.connection import Connection, make_room
from duo.link.listener import Listener
from duo.server import parse_request
from duo.server.lead import Lead
from tests.raw_http import HEALTH, TERMS, UPGRADE, connect, handshake, read_answer, read_to_the_end
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import PATIENCE_S, wait_until
from tests.unit.link.backs import frame

LIMIT_S = 0.3  # instead of 5 to 30 s
KEY = "Authorization: Bearer key\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Lead, ScriptedSlot]]:
    """A lead with a key and a token."""
    engine, slot = scripted_engine()
    limits = [
        (http_module, "HEADERS_S"),
        (http_module, "LINGER_S"),
        (websocket_module, "CLOSE_S"),
        (remote_draft_module, "HELLO_S"),
        (parse_request, "BODY_S"),
    ]
    with pytest.MonkeyPatch.context() as patch, engine:
        for module, name in limits:
            patch.setattr(module, name, LIMIT_S)
        with Lead(engine, port=0, api_keys=["key"], back_token="token") as lead:
            yield lead, slot


@pytest.fixture
def lead(served: tuple[Lead, ScriptedSlot]) -> Lead:
    return served[0]


@pytest.fixture(autouse=True)
def quiet(lead: Lead, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Clients' errors are not the lead's, and it answers afterwards."""
    yield
    assert ask(lead) == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert capfd.readouterr() == ("", "")


def ask(lead: Lead, data: bytes = HEALTH) -> int:
    with closing(connect(lead, data)) as link:
        return read_answer(link)[0]


# Handshakes

ODD = {
    "of a POST with a body that never comes": handshake("POST /v1/draft HTTP/1.1", more="Content-Length: 3\r\n"),
    "of a GET with a body that never comes": handshake(more="Content-Length: 3\r\n"),
    "of a GET with chunks that never come": handshake(more="Transfer-Encoding: chunked\r\n"),
    "of HTTP/1.0": handshake("GET /v1/draft HTTP/1.0"),
    "of a wrong path": handshake("GET /v1/drafts HTTP/1.1"),
    "without key and version": handshake(headers=UPGRADE),
    "without a key": handshake(headers=UPGRADE + "Sec-WebSocket-Version: 13\r\n"),
    "without a version": handshake(headers=UPGRADE, more=TERMS.partition("\r\n")[2]),
    "with a short key": handshake(headers=UPGRADE, more="Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\n"),
    "with two keys": handshake(more=TERMS),
    "with a long header": handshake(more=f"X: {'x' * 20_000}\r\n"),
    "with a long target": handshake(f"GET /v1/draft?{'x' * 20_000} HTTP/1.1"),
    "with a target of bytes": handshake("GET /v1/draft\xff HTTP/1.1"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_handshake_is_refused_and_closed(lead: Lead, name: str) -> None:
    with closing(connect(lead, ODD[name])) as link:
        assert read_to_the_end(link).startswith(b"HTTP/1.1 4")


def test_an_odd_handshake_without_a_body_is_an_ordinary_request(lead: Lead) -> None:
    """And is followed by others."""
    with closing(connect(lead, handshake("POST /v1/draft HTTP/1.1"))) as link:
        assert read_answer(link)[0] == 405
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


def test_half_a_handshake_is_closed(lead: Lead) -> None:
    with closing(connect(lead, handshake()[:-2])) as link:
        assert read_to_the_end(link) == b""


WITHOUT_HELLO = {
    "nothing": b"",
    "half a frame": frame(2, bytes(100))[:50],
    "a message without an end": b"\x02" + frame(2, b"x")[1:],
    "pings": frame(9, b"") * 20,
}


@pytest.mark.parametrize("name", WITHOUT_HELLO)
def test_a_websocket_without_a_hello_is_closed(lead: Lead, name: str) -> None:
    with closing(connect(lead, handshake())) as link:
        assert read_answer(link)[0] == 101
        link.sendall(WITHOUT_HELLO[name])
        read_to_the_end(link)


FLOODS = {"pings": frame(9, b""), "pongs": frame(10, b"x"), "fragments": b"\x00" + frame(0, b"x")[1:]}


@pytest.mark.parametrize("name", FLOODS)
def test_many_frames_before_a_hello_end_the_connection(lead: Lead, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: not at the time limit for a Hello."""
    monkeypatch.setattr(remote_draft_module, "HELLO_S", 10 * PATIENCE_S)
    with closing(connect(lead, handshake())) as link:
        assert read_answer(link)[0] == 101
        with suppress(ConnectionError):
            link.sendall(b"\x02" + frame(2, b"x")[1:] + FLOODS[name] * 100)
        answer = read_to_the_end(link)
        assert answer == b"" or (1008).to_bytes(2, "big") in answer, "a close frame, which may get lost on its way"


# Connections

WAITING = {
    "nothing": b"",
    "half the headers": HEALTH[:9],
    "half a handshake": handshake()[:-2],
    "an odd handshake": ODD["of a POST with a body that never comes"],
    "no hello": handshake(),
    "half a body": f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{KEY}Content-Length: 9\r\n\r\n{{".encode(),
    "an idle connection": HEALTH,
}


@pytest.mark.parametrize("name", WAITING)
def test_connections_that_wait_for_a_client_make_room(lead: Lead, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of their time limits ends here."""
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 20)
    for module, limit in ((http_module, "HEADERS_S"), (http_module, "LINGER_S"), (remote_draft_module, "HELLO_S")):
        monkeypatch.setattr(module, limit, 10 * PATIENCE_S)
    monkeypatch.setattr(parse_request, "BODY_S", 10 * PATIENCE_S)
    with ExitStack() as stack:
        links = [stack.enter_context(closing(connect(lead, WAITING[name]))) for _ in range(60)]
        for link in links[:40]:  # all but the newest
            read_to_the_end(link)
        for _ in range(30):
            assert ask(lead) == 200


def test_a_connection_that_is_being_answered_stays(
    served: tuple[Lead, ScriptedSlot], monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, slot = served
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 3)
    slot.hold()
    body = json.dumps({"prompt": "a", "max_tokens": 3}).encode()
    ordered = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{KEY}Content-Length: {len(body)}\r\n\r\n".encode()
    with ExitStack() as stack:
        n = len(slot.requests)
        texts = [stack.enter_context(closing(connect(lead, ordered + body))) for _ in range(2)]
        wait_until(lambda: lead.n_texts == 2 and len(slot.requests) == n + 1)
        for _ in range(10):
            assert ask(lead) == 200, "there is room for one more"
        third = stack.enter_context(closing(connect(lead, ordered + body)))
        wait_until(lambda: lead.n_texts == 3)
        assert read_to_the_end(stack.enter_context(closing(connect(lead)))) == b"", "there is no room"
        slot.go_on()
        for link in (*texts, third):
            assert read_answer(link)[0] == 200


class Fake:
    """What make_room() asks of a connection."""

    is_gone = False

    def __init__(self, address: str, since: float, *, is_waiting: bool = True) -> None:
        self.client = (address, 1)
        self.since = since
        self.is_waiting = is_waiting
        self.transport = SimpleNamespace(abort=self._abort)

    def _abort(self) -> None:
        self.is_gone = True


def closed_of(connections: list[Fake]) -> list[tuple[str, float]]:
    """Which ones make_room() closes."""
    make_room(cast(list[Connection], connections))
    return [(one.client[0], one.since) for one in connections if one.is_gone]


def test_the_address_with_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 4)
    busy = Fake("greedy", 0, is_waiting=False)
    one = [Fake("modest", 1), busy, Fake("greedy", 3), Fake("greedy", 2)]
    assert closed_of(one) == []
    assert closed_of([*one, Fake("modest", 4), Fake("greedy", 5)]) == [("greedy", 2)]
    del one[-1]
    assert closed_of([*one, Fake("new", 9)]) == []
    assert closed_of([*(Fake("busy", i, is_waiting=False) for i in range(4)), Fake("new", 9)]) == [("new", 9)]


# Turns of the event loop


def turns_during(body: bytes, head: bytes) -> int:
    """How often the event loop runs while a request is read, all of which has come."""
    n_turns = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal n_turns
        if scope["path"] == "/body":
            n_turns, done = 0, False
            counting = asyncio.create_task(count())
            while not done:
                done = not (await receive())["more_body"]
            counting.cancel()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    with Listener(app, "127.0.0.1", 0) as listener, closing(connect(listener)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(body))
        link.sendall(head + body)
        assert read_answer(link)[0] == 204
    return n_turns


def test_a_flood_of_chunks_leaves_turns_to_others() -> None:
    """Other connections have a turn after each few kilobytes."""
    body = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    head = b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert turns_during(body, head) >= len(body) / 8192


def test_a_flood_of_frames_leaves_turns_to_others() -> None:
    """Also one that the application takes: a draft's."""
    n_turns, n_messages = 0, 5000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal n_turns
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": b"welcome"})
        for n in range(n_messages):
            await receive()
            if n == 0:
                counting = asyncio.create_task(count())
        counting.cancel()
        await send({"type": "websocket.close"})

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    data = frame(2, b"x") * n_messages
    with Listener(app, "127.0.0.1", 0) as listener, closing(connect(listener, handshake())) as link:
        answer = b""
        while b"welcome" not in answer:
            answer += link.recv(65536)
        link.sendall(data)
        assert select.select([link], [], [], PATIENCE_S)[0]
    assert n_turns >= len(data) / 1024

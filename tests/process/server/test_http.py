"""A lead's port and raw sockets: malformed requests, slow clients, and what one client can keep from others."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.link.connection import Limits
from duo.link.listener import Listener
from duo.server.lead import Lead
from tests.raw_http import (
    HEALTH,
    TERMS,
    UPGRADE,
    chunked,
    connect,
    handshake,
    read_answer,
    read_to_the_end,
    request,
)
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import PATIENCE_S, wait_until
from tests.unit.link.backs import frame

SHORT = Limits(headers_s=0.3, body_s=0.3, linger_s=0.3, read_s=0.3, close_s=0.3, hello_s=0.3)
PATIENT = Limits(headers_s=600, body_s=600, linger_s=600, hello_s=600)
TEXT = json.dumps({"prompt": "a", "max_tokens": -1, "ignore_eos": True, "stream": True}).encode()
FIVE = json.dumps({"prompt": "a", "max_tokens": 5}).encode()


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Engine, ScriptedSlot]]:
    engine, slot = scripted_engine()
    slot.n_ctx = 100_000
    with engine:
        yield engine, slot


@pytest.fixture(scope="module")
def slot(engine: tuple[Engine, ScriptedSlot]) -> ScriptedSlot:
    return engine[1]


@pytest.fixture(scope="module")
def lead(engine: tuple[Engine, ScriptedSlot]) -> Iterator[Lead]:
    """Its name is so long that a text fills all buffers on its way."""
    with Lead(engine[0], port=0, alias="x" * 10_000, limits=SHORT) as lead:
        yield lead


@pytest.fixture(autouse=True)
def quiet(lead: Lead, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Clients' errors are not logged, and the lead answers afterwards."""
    yield
    assert ask(lead) == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert capfd.readouterr() == ("", "")


def ask(lead: Lead, data: bytes = HEALTH) -> int:
    with closing(connect(lead, data)) as link:
        return read_answer(link)[0]


def is_closed_while(link: socket.socket, send: bytes) -> bool:
    """Whether the lead closes a connection on which `send` comes again and again."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            link.sendall(send)
            if select.select([link], [], [], 0.01)[0] and not link.recv(65536):
                return True
        except (ConnectionResetError, BrokenPipeError):
            return True
    return False


# Malformed requests

MALFORMED = {
    "bare word": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "two lengths": request("/tokenize", more="Content-Length: 5\r\n"),
    "equal lengths": request("/tokenize", more="Content-Length: 0\r\n"),
    "negative length": request("/tokenize", length=-1),
    "length of 41 digits": request("/tokenize", length=10**40),
    "list of lengths": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0, 0\r\n\r\n",
    "no length": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length:\r\n\r\n",
    "length +0": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: +0\r\n\r\n",
    "length 0x0": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x0\r\n\r\n",
    "length and chunked": request("/tokenize", b"0\r\n\r\n", more="Transfer-Encoding: chunked\r\n"),
    "chunked and length": chunked("0\r\n\r\n", more="Content-Length: 5\r\n"),
    "unknown encoding": request("/tokenize", more="Transfer-Encoding: gzip\r\n"),
    "two encodings": request("/tokenize", more="Transfer-Encoding: chunked, identity\r\n"),
    "xchunked": chunked("0\r\n\r\n", "xchunked"),
    "gzip, chunked": chunked("0\r\n\r\n", "gzip, chunked"),
    "chunked twice": chunked("0\r\n\r\n", more="Transfer-Encoding: chunked\r\n"),
    "chunked in HTTP/1.0": chunked("0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "chunk size": chunked("x\r\n\r\n"),
    "negative chunk": chunked("-1\r\n\r\n"),
    "chunk of 2**68": chunked("f" * 17 + "\r\n"),
    "chunk with a bare LF": chunked("2\n{}\n0\n\n"),
    "chunk longer than its size": chunked("1\r\n{}\r\n0\r\n\r\n"),
    "header without colon": b"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "folded header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "bare LF": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "bare CR": b"GET /health HTTP/1.1\r\nHost: localhost\rX: a\r\n\r\n",
    "NUL": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n",
    "NUL in the target": b"GET /health\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "version": b"GET /health HTTP/x\r\nHost: localhost\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/2.0": b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "target without a path": b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "relative target": b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown method": b"TAKE /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "too many headers": HEALTH[:-2] + b"a: b\r\n" * 128 + b"\r\n",
}
TOO_LARGE = {
    "target": b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    "blank lines": b"\r\n" * 35_000,
    "chunk extension": chunked("1;" + "x" * 70_000),
    "trailer": chunked("0\r\nX: " + "x" * 70_000),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_refused(lead: Lead, name: str) -> None:
    with closing(connect(lead, MALFORMED[name] + HEALTH)) as link:
        status, body = read_answer(link)
        assert status == 400
        assert "invalid HTTP request" in json.loads(body)["error"]["message"]
        assert read_to_the_end(link) == b"", "what follows is not read as a request"


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_head_that_is_too_large_is_refused(lead: Lead, name: str) -> None:
    with closing(connect(lead, TOO_LARGE[name])) as link:
        assert read_answer(link)[0] == 431
        assert read_to_the_end(link) == b""


def test_odd_but_valid_requests(lead: Lead) -> None:
    assert ask(lead, HEALTH[:-2] + b"a: b\r\n" * 127 + b"\r\n") == 200
    assert ask(lead, HEALTH.replace(b"/health", b"http://localhost/health")) == 200, "absolute form"
    with closing(connect(lead)) as link:
        for _ in range(2):  # trailers are no headers, whatever they say
            link.sendall(chunked("2;x=y\r\n{}\r\n0\r\nHost: evil\r\nExpect: 100-continue\r\n\r\n"))
            status, body = read_answer(link)
            assert (status, b"content" in body) == (400, True), "the endpoint answers"
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


@pytest.mark.parametrize("second", [HEALTH, HEALTH[:9], b"nonsense\r\n\r\n", HEALTH * 10_000])
def test_a_request_before_the_answer_to_an_earlier_one_is_not_read(
    lead: Lead, slot: ScriptedSlot, second: bytes
) -> None:
    """The earlier one is answered as if nothing else had come, and is the last."""
    slot.hold()
    n = len(slot.requests)
    with closing(connect(lead, request("/v1/completions", FIVE) + second)) as link:
        while len(slot.requests) == n:
            assert ask(lead) == 200
        slot.go_on()
        status, answer = read_answer(link)
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 5)
        assert read_to_the_end(link) == b""


def test_an_upgrade_to_another_protocol_is_ignored(lead: Lead) -> None:
    """As Java's clients ask for one with each first request: its body counts, in pieces, too."""
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
    data = request("/tokenize", b'{"content": "ab"}', more=more)
    with closing(connect(lead)) as link:
        for cut in (len(data), len(data) - 1, 10, 150):
            link.sendall(data[:cut])
            select.select([link], [], [], 0.01)
            link.sendall(data[cut:])
            status, body = read_answer(link)
            assert (status, len(json.loads(body)["tokens"])) == (200, 2)


# Slow clients


def test_headers_that_do_not_come(lead: Lead) -> None:
    """On new connections and on one that has had an answer."""
    with ExitStack() as stack:
        heads = [b"", b"G", HEALTH[:-10], HEALTH[:-1], HEALTH + HEALTH[:-10]]
        links = [stack.enter_context(closing(connect(lead, head))) for head in heads]
        answers = [read_to_the_end(link) for link in links]
    assert answers[:-1] == [b""] * 4
    assert answers[-1].startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("more", [b"X-More: 1\r\n", b"x" * 16384])
def test_headers_that_never_end(lead: Lead, more: bytes) -> None:
    with closing(connect(lead, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")) as link:
        assert is_closed_while(link, more)


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 408), ("/tokenize", 408), ("/nowhere", 404)])
def test_a_body_that_does_not_come(lead: Lead, path: str, status: int) -> None:
    with closing(connect(lead, request(path, b"{", length=10**6))) as link:
        assert read_answer(link)[0] == status
        assert is_closed_while(link, b" "), "the rest of the body is not waited for"


def test_a_body_that_comes_after_its_answer(lead: Lead) -> None:
    """The connection stays open beyond the limit for the body: until a later one has been closed at that limit."""
    with closing(connect(lead)) as link, closing(connect(lead)) as stalled:
        for each in (link, stalled):
            each.sendall(request("/nowhere", length=2))
            assert read_answer(each)[0] == 404
        link.sendall(b"{}")
        end = time.monotonic() + PATIENCE_S
        while not select.select([stalled], [], [], 0.01)[0]:
            assert time.monotonic() < end, "a missing body is waited for"
            link.sendall(HEALTH)
            assert read_answer(link)[0] == 200
        assert read_to_the_end(stalled) == b""
    with closing(connect(lead, chunked("1\r\n", path="/nowhere"))) as link:
        assert read_answer(link)[0] == 404
        link.sendall(b"not a chunk" + HEALTH)
        assert read_to_the_end(link) == b"", "a fault in it ends the connection"


def test_a_client_that_never_reads_is_disconnected(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=3000)  # more than all buffers hold, and not the end
    n = len(slot.requests)
    with closing(connect(lead, request("/v1/completions", TEXT), window=4096)) as link:
        while len(slot.requests) == n:
            assert ask(lead) == 200
        assert slot.requests[-1].cancelled.wait(PATIENCE_S)
        assert b"[DONE]" not in read_to_the_end(link)


@pytest.mark.parametrize("how", ["FIN", "RST", "half"])
def test_a_client_that_disconnects_without_reading(lead: Lead, slot: ScriptedSlot, how: str) -> None:
    slot.hold(n_free=1)
    with closing(connect(lead, request("/v1/completions", TEXT))) as link:
        select.select([link], [], [], PATIENCE_S)
        if how == "RST":
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if how == "half":
            link.shutdown(socket.SHUT_WR)
            assert slot.requests[-1].cancelled.wait(PATIENCE_S)
    assert slot.requests[-1].cancelled.wait(PATIENCE_S)


def test_an_end_with_open_connections(engine: tuple[Engine, ScriptedSlot]) -> None:
    """One that has had its answer, one that sends no more, and one that never reads."""
    engine[1].hold(n_free=3000)
    with ExitStack() as stack:
        with Lead(engine[0], port=0, alias="x" * 10_000) as lead:
            links = [
                stack.enter_context(closing(connect(lead, data, window=window)))
                for window, data in ((None, HEALTH), (None, HEALTH[:9]), (4096, request("/v1/completions", TEXT)))
            ]
            assert read_answer(links[0])[0] == 200
        assert all(read_to_the_end(link) is not None for link in links)


# Handshakes and frames of WebSockets

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
    with closing(connect(lead, handshake("POST /v1/draft HTTP/1.1"))) as link:
        assert read_answer(link)[0] == 405
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


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
def test_many_frames_before_a_hello_end_the_connection(engine: tuple[Engine, ScriptedSlot], name: str) -> None:
    """At once: not at the time limit for a Hello."""
    with Lead(engine[0], port=0, limits=PATIENT) as lead, closing(connect(lead, handshake())) as link:
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
    "half a body": request("/tokenize", b"{", length=9),
    "an idle connection": HEALTH,
}


@pytest.mark.parametrize("name", WAITING)
def test_connections_that_wait_for_a_client_make_room(engine: tuple[Engine, ScriptedSlot], name: str) -> None:
    with Lead(engine[0], port=0, limits=replace(PATIENT, n_connections=20)) as lead, ExitStack() as stack:
        links = [stack.enter_context(closing(connect(lead, WAITING[name]))) for _ in range(60)]
        for link in links[:40]:  # all but the newest
            read_to_the_end(link)
        for _ in range(30):
            assert ask(lead) == 200


def test_a_connection_that_is_being_answered_stays(engine: tuple[Engine, ScriptedSlot]) -> None:
    made, slot = engine
    slot.hold()
    n, text = len(slot.requests), request("/v1/completions", FIVE)
    with Lead(made, port=0, limits=replace(PATIENT, n_connections=3)) as lead, ExitStack() as stack:
        texts = [stack.enter_context(closing(connect(lead, text))) for _ in range(2)]
        wait_until(lambda: lead.n_texts == 2 and len(slot.requests) == n + 1)
        for _ in range(10):
            assert ask(lead) == 200, "there is room for one more"
        third = stack.enter_context(closing(connect(lead, text)))
        wait_until(lambda: lead.n_texts == 3)
        assert read_to_the_end(stack.enter_context(closing(connect(lead)))) == b"", "there is no room"
        slot.go_on()
        for link in (*texts, third):
            assert read_answer(link)[0] == 200


# Turns of the event loop


class Turns:
    """Counts how often the event loop runs."""

    def __init__(self) -> None:
        self.n = 0
        self.task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.n += 1
            await asyncio.sleep(0)


def test_a_flood_of_chunks_leaves_turns_to_others() -> None:
    """Other connections have a turn after each few kilobytes."""
    body = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        turns = Turns()
        while (await receive())["more_body"]:
            pass
        turns.task.cancel()
        found.append(turns.n)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with Listener(app, "127.0.0.1", 0) as listener, closing(connect(listener)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(body))
        link.sendall(b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        assert read_answer(link)[0] == 204
    assert found[0] >= len(body) / 8192


def test_a_flood_of_frames_leaves_turns_to_others() -> None:
    """Also one that the application takes: a draft's."""
    data, found = frame(2, b"x") * 5000, []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": b"welcome"})
        await receive()
        turns = Turns()
        for _ in range(4999):
            await receive()
        turns.task.cancel()
        found.append(turns.n)
        await send({"type": "websocket.close"})

    with Listener(app, "127.0.0.1", 0) as listener, closing(connect(listener, handshake())) as link:
        answer = b""
        while b"welcome" not in answer:
            answer += link.recv(65536)
        link.sendall(data)
        assert select.select([link], [], [], PATIENCE_S)[0]
    assert found[0] >= len(data) / 1024


def test_an_error_of_the_event_loop_is_logged(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        def fail() -> None:
            raise RuntimeError("the sky is falling")

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with Listener(app, "127.0.0.1", 0) as listener, closing(connect(listener, HEALTH)) as link:
        assert read_answer(link)[0] == 204
    (record,) = caplog.records
    assert "event loop" in record.getMessage()
    assert record.exc_info is not None
    caplog.clear()

"""A lead's port and raw sockets: slow-loris, request smuggling, malformed HTTP, clients that never read."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.link import connection as connection_module
from duo.link import http as http_module
from duo.link.listener import Listener
from duo.server import parse_request
from duo.server.lead import Lead
from tests.raw_http import HEALTH, chunked, connect, read_answer, read_to_the_end, request
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import PATIENCE_S

LIMIT_S = 0.3  # instead of 5 to 30 s
TEXT = {"prompt": "a", "max_tokens": -1, "ignore_eos": True, "stream": True}


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
    """Over a scripted engine. Its name is so long that a text fills all buffers on its way."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((http_module, "HEADERS_S"), (connection_module, "READ_S"), (http_module, "LINGER_S")):
            patch.setattr(module, name, LIMIT_S)
        patch.setattr(parse_request, "BODY_S", LIMIT_S)
        with Lead(engine[0], port=0, alias="x" * 10_000) as lead:
            yield lead


@pytest.fixture(autouse=True)
def quiet(lead: Lead, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Clients' errors are not logged, and the lead answers afterwards."""
    yield
    assert ask(lead, HEALTH)[0] == 200
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


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


def ask(lead: Lead, data: bytes) -> tuple[int, bytes]:
    with closing(connect(lead)) as link:
        link.sendall(data)
        return read_answer(link)


# Slow clients


def test_slow_loris_headers(lead: Lead) -> None:
    """Headers that do not come, on new connections and on one that has had an answer."""
    with ExitStack() as stack:
        heads = [b"", b"G", HEALTH[:-10], HEALTH[:-1], HEALTH + HEALTH[:-10]]
        links = [stack.enter_context(closing(connect(lead))) for _ in heads]
        for link, head in zip(links, heads, strict=True):
            link.sendall(head)
        answers = [read_to_the_end(link) for link in links]
    assert answers[:-1] == [b""] * 4
    assert answers[-1].startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("more", [b"X-More: 1\r\n", b"x" * 16384])
def test_slow_loris_headers_that_never_end(lead: Lead, more: bytes) -> None:
    with closing(connect(lead)) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        assert is_closed_while(link, more)


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 408), ("/tokenize", 408), ("/nowhere", 404)])
def test_slow_loris_body(lead: Lead, path: str, status: int) -> None:
    with closing(connect(lead)) as link:
        link.sendall(request(path, b"{", length=10**6))
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
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


def test_a_client_that_never_reads_is_disconnected(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=3000)  # more than all buffers hold, and not the end
    with closing(connect(lead, window=4096)) as link:
        n = len(slot.requests)
        link.sendall(request("/v1/completions", json.dumps(TEXT).encode()))
        while len(slot.requests) == n:
            assert ask(lead, HEALTH)[0] == 200
        assert slot.requests[-1].cancelled.wait(PATIENCE_S)
        assert b"[DONE]" not in read_to_the_end(link)


@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_disconnects_without_reading(lead: Lead, slot: ScriptedSlot, reset: bool) -> None:
    slot.hold(n_free=1)
    with closing(connect(lead)) as link:
        link.sendall(request("/v1/completions", json.dumps(TEXT).encode()))
        select.select([link], [], [], PATIENCE_S)
        if reset:  # instead of a FIN
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert slot.requests[-1].cancelled.wait(PATIENCE_S)


def test_a_half_closed_connection_is_a_disconnect(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    with closing(connect(lead)) as link:
        link.sendall(request("/v1/completions", json.dumps(TEXT).encode()))
        select.select([link], [], [], PATIENCE_S)
        link.shutdown(socket.SHUT_WR)
        assert slot.requests[-1].cancelled.wait(PATIENCE_S)


# Malformed HTTP

MALFORMED = {
    "bare word": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "two lengths": request("/tokenize", more="Content-Length: 5\r\n"),
    "negative length": request("/tokenize", length=-1),
    "length of 41 digits": request("/tokenize", length=10**40),
    "unknown encoding": request("/tokenize", more="Transfer-Encoding: gzip\r\n"),
    "two encodings": request("/tokenize", more="Transfer-Encoding: chunked, identity\r\n"),
    "header without colon": b"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "NUL": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n",
    "version": b"GET /health HTTP/x\r\nHost: localhost\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/2.0": b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "equal lengths": request("/tokenize", more="Content-Length: 0\r\n"),
    "list of lengths": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0, 0\r\n\r\n",
    "no length": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length:\r\n\r\n",
    "length +0": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: +0\r\n\r\n",
    "length 0x0": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x0\r\n\r\n",
    "length and chunked": request("/tokenize", b"0\r\n\r\n", more="Transfer-Encoding: chunked\r\n"),
    "chunked and length": chunked("0\r\n\r\n", more="Content-Length: 5\r\n"),
    "xchunked": chunked("0\r\n\r\n", "xchunked"),
    "gzip, chunked": chunked("0\r\n\r\n", "gzip, chunked"),
    "chunked twice": chunked("0\r\n\r\n", more="Transfer-Encoding: chunked\r\n"),
    "chunked in HTTP/1.0": chunked("0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "chunk size": chunked("x\r\n\r\n"),
    "negative chunk": chunked("-1\r\n\r\n"),
    "chunk of 2**68": chunked("f" * 17 + "\r\n"),
    "chunk with a bare LF": chunked("2\n{}\n0\n\n"),
    "chunk longer than its size": chunked("1\r\n{}\r\n0\r\n\r\n"),
    "folded header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "bare LF": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "bare CR": b"GET /health HTTP/1.1\r\nHost: localhost\rX: a\r\n\r\n",
    "NUL in a name": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX\0: a\r\n\r\n",
    "NUL in the target": b"GET /health\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "target without a path": b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "relative target": b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown method": b"TAKE /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
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
    with closing(connect(lead)) as link:
        link.sendall(MALFORMED[name] + HEALTH)
        status, body = read_answer(link)
        assert status == 400
        assert "invalid HTTP request" in json.loads(body)["error"]["message"]
        assert read_to_the_end(link) == b"", "what follows is not read as a request"


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_head_that_is_too_large_is_refused(lead: Lead, name: str) -> None:
    with closing(connect(lead)) as link:
        link.sendall(TOO_LARGE[name])
        assert read_answer(link)[0] == 431
        assert read_to_the_end(link) == b""


def test_too_many_headers_are_refused(lead: Lead) -> None:
    assert ask(lead, HEALTH[:-2] + b"a: b\r\n" * 127 + b"\r\n")[0] == 200
    assert ask(lead, HEALTH[:-2] + b"a: b\r\n" * 128 + b"\r\n")[0] == 400


def test_a_request_in_absolute_form(lead: Lead) -> None:
    assert ask(lead, HEALTH.replace(b"/health", b"http://localhost/health"))[0] == 200


def test_trailers_are_no_headers(lead: Lead) -> None:
    """Whatever they say; the next request is a request."""
    with closing(connect(lead)) as link:
        for _ in range(2):
            link.sendall(chunked("2;x=y\r\n{}\r\n0\r\nHost: evil\r\nExpect: 100-continue\r\n\r\n"))
            status, body = read_answer(link)
            assert (status, b"content" in body) == (400, True), "the endpoint answers"
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


def test_a_fault_in_a_body_that_was_answered_early(lead: Lead) -> None:
    with closing(connect(lead)) as link:
        link.sendall(chunked("1\r\n", path="/nowhere"))
        assert read_answer(link)[0] == 404
        link.sendall(b"not a chunk" + HEALTH)
        assert read_to_the_end(link) == b""


@pytest.mark.parametrize("second", [HEALTH, HEALTH[:9], b"nonsense\r\n\r\n", HEALTH * 10_000])
def test_a_request_before_the_answer_to_an_earlier_one_is_not_read(
    lead: Lead, slot: ScriptedSlot, second: bytes
) -> None:
    """The earlier one is answered as if nothing else had come, and is the last."""
    slot.hold()
    body = json.dumps({"prompt": "a", "max_tokens": 5}).encode()
    with closing(connect(lead)) as link:
        n = len(slot.requests)
        link.sendall(request("/v1/completions", body) + second)
        while len(slot.requests) == n:
            assert ask(lead, HEALTH)[0] == 200
        slot.go_on()
        status, answer = read_answer(link)
        assert status == 200
        assert json.loads(answer)["usage"]["completion_tokens"] == 5
        assert read_to_the_end(link) == b""


@pytest.mark.parametrize("more", ["Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"])
def test_an_upgrade_to_another_protocol_is_ignored(lead: Lead, more: str) -> None:
    """As Java's clients ask for one with each first request: its body counts, in pieces, too."""
    data = request("/tokenize", b'{"content": "ab"}', more=more)
    with closing(connect(lead)) as link:
        for cut in (len(data), len(data) - 1, 10, 150):
            link.sendall(data[:cut])
            select.select([link], [], [], 0.01)
            link.sendall(data[cut:])
            status, body = read_answer(link)
            assert (status, len(json.loads(body)["tokens"])) == (200, 2)


# The listener


def test_an_end_with_open_connections(engine: tuple[Engine, ScriptedSlot]) -> None:
    """One that has had its answer, one that sends no more, and one that never reads."""
    with ExitStack() as stack:
        with Lead(engine[0], port=0, alias="x" * 10_000) as lead:
            links = [stack.enter_context(closing(connect(lead, window=window))) for window in (None, None, 4096)]
            for link, data in zip(
                links, (HEALTH, HEALTH[:9], request("/v1/completions", json.dumps(TEXT).encode())), strict=True
            ):
                link.sendall(data)
            assert read_answer(links[0])[0] == 200
        assert all(read_to_the_end(link) is not None for link in links)


def test_an_error_of_the_event_loop_is_logged(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        def fail() -> None:
            raise RuntimeError("the sky is falling")

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with Listener(app, "127.0.0.1", 0) as listener, socket.create_connection(("127.0.0.1", listener.port)) as link:
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 204
    (record,) = caplog.records
    assert "event loop" in record.getMessage()
    assert record.exc_info is not None
    caplog.clear()

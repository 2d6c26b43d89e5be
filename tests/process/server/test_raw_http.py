"""A lead's port and raw sockets: slow-loris, request smuggling, malformed HTTP, clients that never read."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.link import listener as listener_module
from duo.link.listener import Listener
from duo.server import lead as lead_module
from duo.server.lead import Lead
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import PATIENCE_S

LIMIT_S = 0.3  # instead of 5 to 30 s
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
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
        for name in ("HEADERS_S", "READ_S", "LINGER_S"):
            patch.setattr(listener_module, name, LIMIT_S)
        patch.setattr(lead_module, "BODY_S", LIMIT_S)
        with Lead(engine[0], port=0, alias="x" * 10_000) as lead:
            yield lead


@pytest.fixture(autouse=True)
def quiet(lead: Lead, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Clients' errors are not logged, and the lead answers afterwards."""
    yield
    assert ask(lead, HEALTH)[0] == 200
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def connect(lead: Lead, window: int | None = None) -> socket.socket:
    """A connection; `window` is the size of the client's receive buffer."""
    link = socket.socket()
    link.settimeout(PATIENCE_S)
    if window is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    link.connect(("127.0.0.1", lead.port))
    return link


def request(path: str, body: bytes = b"", *, length: int | None = None, more: str = "") -> bytes:
    n = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n{more}\r\n".encode() + body


def read_answer(link: socket.socket) -> tuple[int, bytes]:
    """Status and body of one answer that says how long it is."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = link.recv(65536)
        assert more, f"it was closed after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().lower().split("\r\n")
    length = int(dict(line.split(": ", 1) for line in lines).get("content-length", 0))
    while len(body) < length:
        body += link.recv(65536)
    return int(first.split()[1]), body


def read_to_the_end(link: socket.socket) -> bytes:
    """All that comes until the lead closes the connection."""
    data = b""
    try:
        while more := link.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


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
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_refused(lead: Lead, name: str) -> None:
    with closing(connect(lead)) as link:
        link.sendall(MALFORMED[name] + HEALTH)
        assert read_answer(link)[0] in (400, 501)
        assert b"200 OK" not in read_to_the_end(link), "what follows is not read as a request"


def test_a_request_with_length_and_encoding_smuggles_nothing(lead: Lead) -> None:
    """The encoding counts, so that a request after the last chunk is a second one."""
    chunked = request("/tokenize", b"2\r\n{}\r\n0\r\n\r\n", more="Transfer-Encoding: chunked\r\n", length=4)
    with closing(connect(lead)) as link:
        link.sendall(chunked + HEALTH[:-2] + b"Connection: close\r\n\r\n")
        answers = read_to_the_end(link)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"400", b"200"]


# The listener


def test_the_number_of_connections_is_limited(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MOST_CONNECTIONS", 1)
    with closing(connect(lead)) as first:
        first.sendall(HEALTH)
        assert read_answer(first)[0] == 200
        with closing(connect(lead)) as second:
            assert read_to_the_end(second) == b""
        first.sendall(HEALTH)
        assert read_answer(first)[0] == 200


def test_an_end_with_open_connections(engine: tuple[Engine, ScriptedSlot]) -> None:
    """One that has had its answer, one that sends no more, and one that never reads."""
    with ExitStack() as stack:
        with Lead(engine[0], port=0, alias="x" * 10_000) as lead:
            links = [stack.enter_context(closing(connect(lead, window))) for window in (None, None, 4096)]
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

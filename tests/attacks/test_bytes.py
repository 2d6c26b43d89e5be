"""A lead's port and raw sockets: malformed requests, slow clients, and what one client can keep from others."""

import asyncio
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.http.listener import Limits, Listener
from duo.server.lead_server import Lead
from duo.server.requests import MAX_BODY
from tests.raw_http import HEALTH, TERMS, UPGRADE, chunked, connect, handshake, read_answer, read_to_the_end, request
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import PATIENCE_S, wait_until
from tests.unit.remote.workers import frame

SHORT = Limits(request_s=1.0, read_s=1.0, hello_s=1.0)
PATIENT = Limits(request_s=600, hello_s=600)


def completion(**fields: Any) -> bytes:
    return request("/v1/completions", json.dumps({"prompt": "a", **fields}).encode())


TEXT, STREAM = (completion(max_tokens=-1, ignore_eos=True, stream=stream) for stream in (False, True))
FIVE = completion(max_tokens=5)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine, slot = scripted_engine()
    slot.n_ctx = 100_000
    with engine:
        yield engine


@pytest.fixture(scope="module")
def slot(engine: Engine) -> Any:
    return engine.slot


@pytest.fixture(scope="module")
def lead(engine: Engine) -> Iterator[Lead]:
    """Its name is so long that a text fills all buffers on its way."""
    with Lead(engine, port=0, alias="x" * 10_000, limits=SHORT) as lead:
        yield lead


@pytest.fixture(scope="module")
def patient(engine: Engine) -> Iterator[Lead]:
    """For requests of megabytes, which a busy machine reads slowly."""
    with Lead(engine, port=0, limits=PATIENT) as lead:
        yield lead


@pytest.fixture(autouse=True)
def quiet(lead: Lead, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Clients' errors are not logged, and the lead answers afterwards."""
    yield
    assert ask(lead) == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert capfd.readouterr() == ("", "")


def ask(lead: Lead, data: bytes = HEALTH) -> int:
    with connect(lead, data) as link:
        return read_answer(link)[0]


def assert_closed_while(link: socket.socket, data: bytes) -> None:
    """The lead closes a connection on which `data` comes again and again."""
    end = time.monotonic() + PATIENCE_S
    with suppress(ConnectionResetError, BrokenPipeError):
        while not select.select([link], [], [], 0.01)[0] or link.recv(65536):
            assert time.monotonic() < end
            link.sendall(data)


# Malformed requests


def get(headers: bytes = b"Host: localhost\r\n", target: bytes = b"/health", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET %s %s\r\n%s\r\n" % (target, version, headers)


def post(*headers: bytes) -> bytes:
    return b"\r\n".join((b"POST /tokenize HTTP/1.1", b"Host: localhost", *headers, b"", b"0", b"", b""))


CHUNKED = b"Transfer-Encoding: chunked"
MALFORMED = [
    b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",  # TLS
    b"GET /health\r\n\r\n", get(version=b"HTTP/x"), b"\r\n" * 2,
    get(b""), get(b"Host: localhost\r\nHost: evil\r\n"), get(b"Host : localhost\r\n"), get(target=b"/health\0"),
    get(b"Host: localhost\r\nno colon\r\n"), get(b"Host: localhost\rX: a\r\n"), get(b"Host: localhost\r\nX: \0\r\n"),
    post(b"Content-Length: 0", b"Content-Length: 5"), post(b"Content-Length: -1"),
    post(b"Content-Length: 1" + b"0" * 40), post(b"Content-Length:"), post(b"Content-Length: +0"),
    post(b"Content-Length: 5", CHUNKED), post(CHUNKED, CHUNKED), post(b"Transfer-Encoding: gzip, chunked"),
    post(CHUNKED + b", identity"),
    *(chunked(body) for body in ("x\r\n\r\n", "-1\r\n\r\n", "f" * 21 + "\r\n", "1\r\n{}\r\n0\r\n\r\n")),
    get(target=b"/" + b"x" * 70_000), get(b"Host: localhost\r\nX: " + b"x" * 70_000 + b"\r\n"),
    chunked("1;" + "x" * 70_000), chunked("0\r\nX: " + "x" * 70_000),
]  # fmt: skip
BODY_TO_COME = handshake("POST /v1/draft HTTP/1.1", more="Content-Length: 3\r\n")
VERSION = TERMS.partition("\r\n")[0] + "\r\n"
ODD_HANDSHAKES = [
    BODY_TO_COME,
    *(handshake(f"GET {path} HTTP/1.1") for path in ("/v1/drafts", f"/v1/draft?{'x' * 20_000}", "/v1/draft\xff")),
    *(handshake(more=more) for more in (
        "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", f"X: {'x' * 20_000}\r\n", TERMS)),
    *(handshake(headers=UPGRADE + terms) for terms in (
        "", VERSION, VERSION + "Sec-WebSocket-Key: a\r\n", TERMS.removeprefix(VERSION))),
]  # fmt: skip
REFUSED = [*(data + HEALTH for data in MALFORMED), *ODD_HANDSHAKES]


@pytest.mark.parametrize("data", REFUSED, ids=range(len(REFUSED)))
def test_an_odd_request_is_refused_and_its_connection_closed(lead: Lead, data: bytes) -> None:
    with connect(lead) as link:
        with suppress(ConnectionError):
            link.sendall(data)
        answer = read_to_the_end(link)
        assert answer.startswith(b"HTTP/1.1 4") or (not answer and len(data) > 4096), "it may get lost on its way"
        assert b"200 OK" not in answer, "what follows is not read as a request"


def test_odd_but_valid_requests(lead: Lead) -> None:
    assert ask(lead, HEALTH[:-2] + b"a: b\r\n" * 127 + b"\r\n") == 200
    with connect(lead) as link:
        for _ in range(2):  # trailers are no headers, whatever they say
            link.sendall(chunked("2;x=y\r\n{}\r\n0\r\nHost: evil\r\nExpect: 100-continue\r\n\r\n"))
            status, body = read_answer(link)
            assert (status, b"content" in body) == (400, True), "the endpoint answers"
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


@pytest.mark.parametrize("second", [HEALTH, HEALTH[:9], b"nonsense\r\n\r\n", HEALTH * 10_000])
def test_requests_before_the_answer_to_an_earlier_one_wait(lead: Lead, slot: ScriptedSlot, second: bytes) -> None:
    slot.hold()
    n = len(slot.requests)
    with connect(lead) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(second))
        link.sendall(FIVE + second)
        wait_until(lambda: len(slot.requests) > n)
        slot.go_on()
        assert read_answer(link)[0] == 200


def test_an_upgrade_to_another_protocol_is_ignored(lead: Lead) -> None:
    """As Java's clients ask for one with each first request: its body counts, in pieces, too."""
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
    data = request("/tokenize", b'{"content": "ab"}', more=more)
    with connect(lead) as link:
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
        links = [stack.enter_context(connect(lead, head)) for head in heads]
        answers = [read_to_the_end(link) for link in links]
    assert answers[:-1] == [b""] * 4
    assert answers[-1].startswith(b"HTTP/1.1 200 OK")
    for more in (b"X-More: 1\r\n", b"x" * 16384):  # which never end
        with connect(lead, HEALTH[:-2]) as link:
            assert_closed_while(link, more)


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/nowhere"])
def test_a_body_that_does_not_come(lead: Lead, path: str) -> None:
    with connect(lead, request(path, b"{", length=10**6)) as link:
        assert_closed_while(link, b" ")


def test_a_body_that_is_too_large_is_refused_before_its_end(patient: Lead) -> None:
    with connect(patient, chunked("")) as link:
        for n in (*[2**16] * (MAX_BODY // 2**16), 1):
            link.sendall(b"%x\r\n" % n + bytes(n) + b"\r\n")
        status, body = read_answer(link)
        assert (status, b"larger than %d bytes" % MAX_BODY in body) == (413, True)


def test_a_body_that_comes_after_its_answer(lead: Lead) -> None:
    with connect(lead, request("/nowhere", length=2)) as link:
        assert read_answer(link)[0] == 404
        link.sendall(b"{}" + HEALTH)
        assert read_answer(link)[0] == 200
    with connect(lead, chunked("1\r\n", path="/nowhere")) as link:
        assert read_answer(link)[0] == 404
        link.sendall(b"not a chunk" + HEALTH)
        assert read_to_the_end(link) == b"", "a fault in it ends the connection"


def test_a_client_that_never_reads_is_disconnected(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=3000)  # more than all buffers hold, and not the end
    n = len(slot.requests)
    with connect(lead, STREAM, window=4096) as link:
        wait_until(lambda: len(slot.requests) > n)
        assert ask(lead) == 200
        assert slot.requests[-1].cancelled.wait(PATIENCE_S)
        assert b"[DONE]" not in read_to_the_end(link)


@pytest.mark.parametrize("text", [TEXT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_client_that_disconnects_without_reading(lead: Lead, slot: ScriptedSlot, how: str, text: bytes) -> None:
    slot.hold(n_free=1)
    n = len(slot.requests)
    with connect(lead, text) as link:
        wait_until(lambda: len(slot.requests) > n and slot.requests[-1].metrics.steps)
        if how == "RST":
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert slot.requests[-1].cancelled.wait(PATIENCE_S)
    wait_until(lambda: lead.n_texts == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("probed", [False, True])
def test_a_client_that_has_said_all_gets_its_answer(
    lead: Lead, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch, *, stream: bool, probed: bool
) -> None:
    """As one that reads its standard input to the end; the lead asks whether it is still there."""
    monkeypatch.setattr("duo.http.listener._PROBE_S", 0.01 if probed else 60)
    slot.hold(n_free=0 if probed else 1)
    n = len(slot.requests)
    with connect(lead, completion(max_tokens=5, stream=stream)) as link:
        link.shutdown(socket.SHUT_WR)
        wait_until(lambda: len(slot.requests) > n)
        interim = b"HTTP/1.1 100 Continue\r\n\r\n" if probed else b""
        assert link.recv(len(interim)) == interim if probed else True
        slot.go_on()
        answer = read_to_the_end(link).replace(interim, b"")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert (b"[DONE]" in answer) == stream
    assert slot.requests[-1].metrics.stop == "token limit"


LARGE = [
    request("/v1/completions", bytes(MAX_BODY + 2**21), more="Connection: close\r\n"),
    request("/nowhere", bytes(2**22)).replace(b"HTTP/1.1", b"HTTP/1.0"), b"GET /" + b"x" * 2**22,
]  # fmt: skip


@pytest.mark.parametrize("body", LARGE, ids=range(len(LARGE)))
def test_an_answer_is_not_lost_because_a_client_still_sends(patient: Lead, body: bytes) -> None:
    """A connection that is closed while bytes have not been read is reset."""
    with connect(patient, body) as link:
        answer = link.recv(65536)  # the first part, which has the status
        link.shutdown(socket.SHUT_WR)
        while link.recv(65536):
            pass
    assert int(answer.split()[1]) in (413, 404, 400)


def test_an_end_with_open_connections(engine: Engine, slot: ScriptedSlot) -> None:
    """One that has had its answer, one that sends no more, and one that never reads."""
    slot.hold(n_free=3000)
    with ExitStack() as stack:
        with Lead(engine, port=0, alias="x" * 10_000) as lead:
            links = [stack.enter_context(connect(lead, data, window=4096)) for data in (HEALTH, HEALTH[:9], STREAM)]
            assert read_answer(links[0])[0] == 200
        assert all(read_to_the_end(link) is not None for link in links)


# Handshakes and frames of WebSockets


@pytest.mark.parametrize(
    "data",
    [b"", frame(2, bytes(100))[:50], b"\x02" + frame(2, b"x")[1:], frame(9, b"") * 20],
    ids=["nothing", "half a frame", "a message without an end", "pings"],
)
def test_a_websocket_without_a_hello_is_closed(lead: Lead, data: bytes) -> None:
    with connect(lead, handshake()) as link:
        assert read_answer(link)[0] == 101
        link.sendall(data)
        read_to_the_end(link)


# Connections

HALF = [b"", HEALTH[:9], handshake()[:-2], BODY_TO_COME, handshake(), request("/tokenize", b"{", length=9), HEALTH]


def test_connections_that_wait_for_a_client_make_room(engine: Engine) -> None:
    with Lead(engine, port=0, limits=replace(PATIENT, n_connections=20)) as lead:
        for data in HALF:
            with ExitStack() as stack:
                links = []
                for _ in range(60):
                    links.append(stack.enter_context(connect(lead, data)))
                    if data == HEALTH:  # it waits again from the end of its answer on
                        assert read_answer(links[-1])[0] == 200
                for link in links[:40]:  # all but the newest
                    read_to_the_end(link)
                for _ in range(30):
                    assert ask(lead) == 200


def test_a_connection_that_is_being_answered_stays(engine: Engine, slot: ScriptedSlot) -> None:
    slot.hold()
    n = len(slot.requests)
    with Lead(engine, port=0, limits=replace(PATIENT, n_connections=3)) as lead, ExitStack() as stack:
        texts = [stack.enter_context(connect(lead, FIVE)) for _ in range(2)]
        wait_until(lambda: lead.n_texts == 2 and len(slot.requests) == n + 1)
        for _ in range(10):
            assert ask(lead) == 200, "there is room for one more"
        third = stack.enter_context(connect(lead, FIVE))
        wait_until(lambda: lead.n_texts == 3)
        assert read_to_the_end(stack.enter_context(connect(lead))) == b"", "there is no room"
        slot.go_on()
        for link in (*texts, third):
            assert read_answer(link)[0] == 200


def test_a_flood_of_chunks_leaves_turns_of_the_event_loop_to_others() -> None:
    body, turns = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n", []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        counting = asyncio.create_task(count())
        while (await receive())["more_body"]:
            pass
        counting.cancel()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with Listener(app, "127.0.0.1", 0) as listener, connect(listener) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(body))
        link.sendall(chunked("", path="/body") + body)
        assert read_answer(link)[0] == 204
    assert len(turns) >= len(body) / 8192

"""Random bytes at a lead's port: mutated requests, handshakes and frames, whole and in pieces, on many connections.

Every connection ends, no answer is a 5xx but 503, nothing is logged as an error, and the lead answers afterwards.
"""

import asyncio
import logging
from contextlib import suppress
from random import Random

import httptools
import pytest

from duo.http.listener import Limits
from duo.remote import messages
from duo.server.lead_server import Lead
from tests.attacks.test_bytes import REFUSED
from tests.fuzz.cases import FULL, damaged
from tests.raw_http import HEALTH, chunked, connect, handshake, read_answer, request
from tests.scripted import scripted_engine
from tests.serving import PATIENCE_S, wait_until
from tests.unit.remote.workers import frame, hello

N_AT_ONCE = 50
LIMITS = Limits(request_s=1.0, read_s=1.0, hello_s=1.0)
BODY = b'{"prompt": "a", "max_tokens": 5, "stream": true}'

VALID = [
    HEALTH,
    HEALTH.replace(b"GET", b"OPTIONS"),
    HEALTH.replace(b"/health", b"http://localhost/v1/models/scripted?a=%00"),
    HEALTH.replace(b"1.1", b"1.0"),
    HEALTH * 3,
    request("/tokenize", b'{"content": "ab"}', more="Expect: 100-continue\r\n"),
    request("/tokenize", b'{"content": "ab"}', more="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    request("/v1/completions", BODY, more="Connection: close\r\n"),
    request("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}'),
    chunked('11\r\n{"content": "ab"}\r\n0\r\n\r\n'),
    chunked('1;x=y\r\n{\r\n10\r\n"content": "ab"}\r\n0\r\nTrailer: x\r\n\r\n'),
    handshake(),
    handshake("POST /v1/draft HTTP/1.1", more="Content-Length: 3\r\n"),
]
LINES = sorted({line + b"\r\n" for data in REFUSED + VALID for line in data.split(b"\r\n") if b":" in line})
NUMBERS = [b"0", b"-1", b"+5", b"1e3", b"0x10", b"2147483648", b"18446744073709551616", b"9" * 50, b""]
PIECES = [
    *LINES, *NUMBERS, b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\r\n\r\n", b"\r\n ", b"0\r\n\r\n",
    b"Upgrade: websocket\r\n", b"Expect: x\r\n", b"Origin: http://evil\r\n", b"X: \xe9\r\n", b"a: b\r\n" * 200,
    b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT", b"TRACE", b"/\xc3\xa9", b"/%", b"*",
]  # fmt: skip


PAYLOADS = (b"", b"\x03\xe8", bytes(125), messages.encode(hello()))


def a_case(dice: Random) -> list[bytes]:
    """What one client sends, in pieces."""
    if dice.random() < 0.25:
        sent = [frame(dice.choice([0, 1, 2, 2, 2, 8, 9, 10]), dice.choice(PAYLOADS)) for _ in range(dice.randint(1, 9))]
        return [handshake(), damaged(dice, b"".join(sent))]
    data = dice.choice(VALID)
    for _ in range(dice.choice([0, 1, 1, 2, 4])):
        data = damaged(dice, data, PIECES)
    ends = sorted(dice.randrange(len(data) + 1) for _ in range(2)) if dice.random() < 0.3 else [0, 0]
    return [data[: ends[0]], data[ends[0] : ends[1]], data[ends[1] :]]


async def send_all(port: int, cases: list[list[bytes]]) -> list[bytes]:
    return await asyncio.gather(*(send(port, case) for case in cases))


async def send(port: int, case: list[bytes]) -> bytes:
    """All that comes back, until the lead ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with suppress(ConnectionError):
        for piece in case:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
    with suppress(ConnectionError):
        while data := await asyncio.wait_for(reader.read(65536), PATIENCE_S):
            answer += data
    writer.transport.abort()
    return answer


def statuses(answer: bytes) -> list[int]:
    """The statuses of an answer; all of it is HTTP, up to frames of a WebSocket."""

    class Statuses(list[int]):
        def on_headers_complete(self) -> None:
            self.append(parser.get_status_code())

    found = Statuses()
    parser = httptools.HttpResponseParser(found)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    with suppress(httptools.HttpParserUpgrade):
        parser.feed_data(answer)
    return found


def test_any_bytes_at_the_port(capfd: pytest.CaptureFixture[str]) -> None:
    dice = Random(None if FULL else 0)
    seen: set[int] = set()
    engine, _ = scripted_engine()
    with engine, Lead(engine, port=0, limits=LIMITS) as lead:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # which the lead does not show
        for _ in range(100 if FULL else 4):
            some = [a_case(dice) for _ in range(N_AT_ONCE)]
            for case, answer in zip(some, asyncio.run(send_all(lead.port, some)), strict=True):
                found = statuses(answer)
                seen.update(found)
                assert not [status for status in found if status >= 500 and status != 503], (case, answer)
            with connect(lead, HEALTH) as link:
                assert read_answer(link)[0] == 200
        assert {100, 101, 200, 400, 404, 405} <= seen, "the cases get far enough"
        wait_until(lambda: lead.n_texts == 0)
    assert capfd.readouterr() == ("", "")

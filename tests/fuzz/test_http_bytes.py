"""Random bytes at a lead's port: mutated requests, handshakes and frames, whole and in pieces, on many connections.

Every connection ends, no answer is a 5xx but 503, nothing is logged as an error, and the lead answers afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import httptools
import pytest

from duo.link import messages
from duo.link.connection import Limits
from duo.server.lead import Lead
from tests.fuzz.cases import FULL, n_cases
from tests.raw_http import HEALTH, chunked, connect, handshake, read_answer, request
from tests.scripted import scripted_engine
from tests.serving import PATIENCE_S, wait_until
from tests.unit.link.backs import frame, hello

N_CASES = 5000
N_AT_ONCE = 50
LIMITS = Limits(idle_s=1, headers_s=0.2, body_s=0.2, linger_s=0.2, read_s=0.2, close_s=0.2, hello_s=0.2)
BODY = b'{"prompt": "a", "max_tokens": 5, "stream": true}'

VALID = [
    HEALTH,
    HEALTH.replace(b"GET", b"HEAD"),
    HEALTH.replace(b"GET", b"OPTIONS"),
    HEALTH.replace(b"/health", b"/v1/models"),
    HEALTH.replace(b"/health", b"/metrics"),
    HEALTH.replace(b"/health", b"http://localhost/v1/models/scripted?a=%00"),
    HEALTH.replace(b"1.1", b"1.0"),
    HEALTH * 3,
    request("/tokenize", b'{"content": "ab"}'),
    request("/tokenize", b'{"content": "ab"}', more="Expect: 100-continue\r\n"),
    request("/tokenize", b'{"content": "ab"}', more="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    request("/v1/completions", BODY),
    request("/v1/completions", BODY, more="Connection: close\r\n"),
    request("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}'),
    chunked('11\r\n{"content": "ab"}\r\n0\r\n\r\n'),
    chunked('1;x=y\r\n{\r\n10\r\n"content": "ab"}\r\n0\r\nTrailer: x\r\n\r\n'),
    handshake(),
    handshake("POST /v1/draft HTTP/1.1", more="Content-Length: 3\r\n"),
    handshake("GET /v1/draft HTTP/1.0"),
]
PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\xff", b"\r\n\r\n", b"\r\n ", b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"Host: evil\r\n", b"Connection: close\r\n", b"Connection: keep-alive, Upgrade\r\n", b"Upgrade: websocket\r\n",
    b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Expect: x\r\n", b"Origin: http://evil\r\n", b"X: \xe9\r\n",
    b"Sec-WebSocket-Key: x\r\n", b"Sec-WebSocket-Version: 12\r\n", b"Sec-WebSocket-Protocol: a, b\r\n",
    b"a: b\r\n" * 200, b"X: " + b"x" * 9000 + b"\r\n", b"x" * 70_000, b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]  # fmt: skip
NUMBERS = [b"0", b"-1", b"+5", b"1e3", b"0x10", b"2147483648", b"18446744073709551616", b"9" * 50, b""]


def cut(data: bytes, rng: random.Random) -> tuple[bytes, bytes, bytes]:
    """Three parts."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:start], data[start:end], data[end:]


def shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    i, j = (rng.randrange(len(lines)) for _ in range(2))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\r\n".join(lines)


def change_number(data: bytes, rng: random.Random) -> bytes:
    places = [i for i, byte in enumerate(data) if chr(byte).isdecimal()]
    if not places:
        return data
    place = rng.choice(places)
    return data[:place] + rng.choice(NUMBERS) + data[place + 1 :]


def insert(data: bytes, rng: random.Random) -> bytes:
    """A piece, more often where a line begins."""
    starts = [i + 2 for i in range(len(data)) if data[i : i + 2] == b"\r\n"]
    place = rng.choice(starts) if starts and rng.random() < 0.8 else rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(PIECES) + data[place:]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.randrange(1, 4)) + data[place + 1 :]


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    shuffle_lines,
    change_number,
    insert,
    insert,
    overwrite,
    lambda data, rng: cut(data, rng)[0],
    lambda data, rng: b"".join(cut(data, rng)[::2]),
    lambda data, rng: b"".join(part * n for part, n in zip(cut(data, rng), (1, 2, 1), strict=True)),
    lambda data, rng: data + rng.choice(VALID),
    lambda data, rng: data.replace(b"GET", rng.choice([b"POST", b"CONNECT", b"get", b"G", b"TRACE"]), 1),
    lambda data, rng: data.replace(b"/", rng.choice([b"//", b"/%", b"*", b"/\xc3\xa9", b"/?#", b"http://"]), 1),
]


def frames(rng: random.Random) -> bytes:
    """Frames of a WebSocket, few of which are right."""
    data = b""
    for _ in range(rng.choice([1, 2, 5, 100])):
        payload = rng.choice([b"", b"\x03\xe8", rng.randbytes(rng.randrange(130)), messages.encode(hello())])
        one = bytearray(frame(rng.choice([0, 1, 2, 2, 2, 8, 9, 10, 11]), payload))
        if rng.random() < 0.3:
            one[rng.randrange(min(len(one), 6))] = rng.randrange(256)
        data += one
    return data


def a_case(rng: random.Random) -> list[bytes]:
    """What one client sends, in pieces."""
    if rng.random() < 0.05:
        data = rng.randbytes(rng.choice([1, 10, 1000, 70_000]))
    elif rng.random() < 0.25:
        return [handshake(), frames(rng)] if rng.random() < 0.8 else [handshake() + frames(rng)]
    else:
        data = rng.choice(VALID)
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            data = rng.choice(MUTATIONS)(data, rng)
    return list(cut(data, rng)) if rng.random() < 0.3 else [data]


async def send(port: int, case: list[bytes]) -> bytes:
    """All that comes back, until the lead ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        with suppress(ConnectionError):
            for piece in case:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
        with suppress(ConnectionError):
            while data := await asyncio.wait_for(reader.read(65536), PATIENCE_S):
                answer += data
    finally:
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


@pytest.fixture
def lead() -> Iterator[Lead]:
    engine, _ = scripted_engine()
    with engine, Lead(engine, port=0, limits=LIMITS) as lead:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # which the lead does not show
        yield lead


def test_any_bytes_at_the_port(lead: Lead, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(None if FULL else 0)
    cases = [a_case(rng) for _ in range(n_cases(N_CASES))]

    async def send_all(some: list[list[bytes]]) -> list[bytes]:
        return await asyncio.gather(*(send(lead.port, case) for case in some))

    seen: set[int] = set()
    for start in range(0, len(cases), N_AT_ONCE):
        some = cases[start : start + N_AT_ONCE]
        for case, answer in zip(some, asyncio.run(send_all(some)), strict=True):
            found = statuses(answer)
            seen.update(found)
            assert not [status for status in found if status >= 500 and status != 503], (case, answer)
        with connect(lead, HEALTH) as link:
            assert read_answer(link)[0] == 200
        odd = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert not odd, some
    assert {100, 101, 200, 400, 404, 405, 426} <= seen, "the cases get far enough"
    wait_until(lambda: not lead._listener._server.server_state.connections)
    wait_until(lambda: lead.n_texts == 0)
    assert capfd.readouterr() == ("", "")

"""Sixty ways past a key, past the check of Host and past that of Origin: none reads or writes anything."""

import base64
from collections.abc import Iterator

import pytest

from duo.engine.engine import Engine
from duo.http.listener import Limits
from duo.server.lead_server import Lead
from tests.attacks.judge import assert_serves, attack
from tests.raw_http import TERMS, UPGRADE

LIMITS = Limits(request_s=2.0, read_s=2.0, hello_s=2.0)
KEY = "sk-one"
BASIC = base64.b64encode(f":{KEY}".encode()).decode()


@pytest.fixture(scope="module")
def closed(engine: Engine) -> Iterator[Lead]:
    """Clients need a key."""
    with Lead(engine, port=0, api_keys=[KEY, "sk-two"], limits=LIMITS) as lead:
        yield lead


@pytest.fixture(scope="module")
def local(engine: Engine) -> Iterator[Lead]:
    """On loopback, without a key."""
    with Lead(engine, port=0, cors_origins=["https://chat.example"], limits=LIMITS) as lead:
        yield lead


def get(*lines: str, first: str = "GET /v1/models HTTP/1.1", host: str = "Host: localhost") -> bytes:
    head = [first, *([host] if host else []), *lines, "Connection: close", "", ""]
    return "\r\n".join(head).encode("latin-1")


WRONG = [
    "", "Authorization: ", "Authorization: Bearer", "Authorization: Bearer ", "Authorization: Bearer sk-on",
    "Authorization: Bearer sk-onee", "Authorization: Bearer SK-ONE", f"Authorization: {KEY}",
    f"Authorization: Basic {BASIC}", f"Authorization: Basic {KEY}", f"Authorization: Token {KEY}",
    f"Authorization: Bearer {KEY},sk-two", f"Authorization: Bearer {KEY} x", f"Authorization: Bearer x {KEY}",
    f"Authorization: Bearer {KEY}\0", f"Authorization: Bearer\t{KEY}", f"X-Authorization: Bearer {KEY}",
    f"Proxy-Authorization: Bearer {KEY}", f"Cookie: key={KEY}; api_key={KEY}", "X-Api-Key: ", "X-Api-Key: sk-o\xefe",
    f"Authorization: Bearer x\r\nX-Api-Key: {KEY}", f"Authorization: Bearer x\r\nAuthorization: Bearer {KEY}",
    "Authorization: Bearer *", "Authorization: Bearer None", "Authorization: Bearer null", "X-Api-Key: ['sk-one']",
    "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: localhost", "X-Original-URL: /health", "X-Rewrite-URL: /health",
    "X-HTTP-Method-Override: OPTIONS",
]  # fmt: skip
PATHS = [
    f"GET /v1/models?api_key={KEY} HTTP/1.1", "GET /health/../v1/models HTTP/1.1", "GET //v1/models HTTP/1.1",
    "GET /page/../v1/models HTTP/1.1", "GET /page/%2e%2e/v1/models HTTP/1.1", "GET /%76%31/models HTTP/1.1",
    "GET /V1/MODELS HTTP/1.1", "GET /v1/models; HTTP/1.1", "GET /v1/models/ HTTP/1.1", "HEAD /v1/models HTTP/1.1",
    "GET http://localhost/v1/models HTTP/1.1", "GET /health;/v1/models HTTP/1.1", "GET /v1/draft/../models HTTP/1.1",
    "POST / HTTP/1.1", "PUT /page/a.js HTTP/1.1", "GET /slots HTTP/1.0", "GET /v1/duo/events HTTP/1.1",
    "GET /metrics HTTP/1.1", "GET /props#/health HTTP/1.1", "FOO /slots HTTP/1.1",
]  # fmt: skip
HOSTS = [
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost", "localhost@evil.example",
    "[::2]", "[::1].evil", "127.0.0.2", "0.0.0.0", "2130706433", "0x7f000001", "", " ", "localhost evil",
    "localhost,evil", "localhost.", "loc\u00e4lhost", "x" * 5000, "localhost%00.evil", "//localhost",
    "localhost:80@evil.example", "localhost:evil", "[::1]:80:evil", "[::1",
]  # fmt: skip
ORIGINS = [
    "https://evil.example", "null", "http://localhost.evil.example", "https://chat.example.evil", "http://chat.example",
    "https://chat.example:444", "https://CHAT.example.", "https://chat.example/", "x", "//localhost", "http://[",
    "file://", "http://localhost:1", "http://[::1", "//[x]",
    "http://127.0.0.1", "https://chat.example https://evil", "*", "HTTP://evil",
]  # fmt: skip
FETCHES = ["/v1/models", "/metrics", "/health", "/v1/duo/events", "/page/app.js"]


@pytest.mark.parametrize("lines", WRONG, ids=range(len(WRONG)))
def test_nothing_but_a_key_is_a_key(closed: Lead, lines: str) -> None:
    for first in ("GET /v1/models HTTP/1.1", "GET /slots HTTP/1.0", "POST /v1/completions HTTP/1.1"):
        assert set(attack(closed, get(*([lines] if lines else []), first=first))) <= {400, 401}
    assert_serves(closed)


@pytest.mark.parametrize("first", PATHS, ids=range(len(PATHS)))
def test_no_path_leads_around_the_key(closed: Lead, first: str) -> None:
    assert attack(closed, get(first=first))[0] in (400, 401, 404, 405)
    assert_serves(closed)


@pytest.mark.parametrize("host", HOSTS, ids=range(len(HOSTS)))
def test_other_names_of_this_machine_are_refused(local: Lead, host: str) -> None:
    for first, more in (
        ("GET /v1/models HTTP/1.1", ""),
        ("GET / HTTP/1.0", ""),
        ("GET /v1/draft HTTP/1.1", UPGRADE + TERMS),
    ):
        lines = [line for line in more.split("\r\n") if line]
        assert attack(local, get(*lines, first=first, host=f"Host: {host}")) in ([400], [403])
    assert_serves(local)


def test_only_http_1_0_may_leave_the_name_out(local: Lead) -> None:
    assert attack(local, get(host="")) == [400]
    assert attack(local, get(host="", first="GET /health HTTP/1.0")) == [200]
    assert attack(local, get("Host:", host="", first="GET /health HTTP/1.0")) == [403]
    assert attack(local, get("Origin: http://evil", host="", first="GET /health HTTP/1.0")) == [403]
    for origin in ("null", "http://", ""):  # those of a page without a host are no page of this one
        assert attack(local, get(f"Origin: {origin}", host="", first="GET /health HTTP/1.0")) == [403]
    assert attack(local, get("X-Forwarded-Host: localhost", host="Host: evil")) == [403]


@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_of_other_sites_are_refused(local: Lead, origin: str) -> None:
    for first in ("GET /v1/models HTTP/1.1", "POST /v1/completions HTTP/1.1", "GET / HTTP/1.1"):
        assert attack(local, get(f"Origin: {origin}", first=first)) in ([400], [403])
    assert_serves(local)


@pytest.mark.parametrize("path", FETCHES)
def test_what_other_sites_embed_is_refused(local: Lead, path: str) -> None:
    for mode in ("no-cors", "navigate", "websocket"):
        asked = get("Sec-Fetch-Site: cross-site", f"Sec-Fetch-Mode: {mode}", first=f"GET {path} HTTP/1.1")
        assert attack(local, asked) == [403]
    assert_serves(local)

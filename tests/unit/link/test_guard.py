"""Which requests pass: Host (DNS rebinding), Origin and Sec-Fetch-Site (pages of other sites)."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from duo.link.guard import LOOPBACK_NAMES, Guard, allowed_hosts, in_url, is_loopback
from duo.link.messages import ROUTE
from tests.serving import assert_error

LOCAL = allowed_hosts("127.0.0.1")
CHAT = frozenset({"https://chat.example"})


def passes(
    hosts: frozenset[str] | None = None,
    origins: frozenset[str] = frozenset(),
    path: str = "/v1/models",
    method: str = "GET",
    **headers: str,
) -> bool:
    """Whether a request does; a refusal is an error in OpenAI's shape."""
    client = TestClient(Guard(PlainTextResponse("passed"), hosts, origins), base_url="http://localhost")
    answer = client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    if answer.status_code != 200:
        assert_error(answer, 403, "not allowed: add it")
    return answer.status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::2]", "", "localhost@evil", "x" * 5000]
)
def test_other_names_are_refused(host: str) -> None:
    """A page may let its own name point to this machine: DNS rebinding."""
    for path in ("/", "/health", ROUTE):
        assert not passes(LOCAL, path=path, host=host)


@pytest.mark.parametrize(
    ("host", "more", "names"),
    [
        ("127.0.0.1", [], {*LOOPBACK_NAMES}),
        ("::1", [], {*LOOPBACK_NAMES}),
        ("127.0.0.2", [], {*LOOPBACK_NAMES, "127.0.0.2"}),
        ("0.0.0.0", [], None),
        ("box", [], None),
        ("0.0.0.0", ["Box"], {*LOOPBACK_NAMES, "0.0.0.0", "box"}),
    ],
)
def test_which_names_an_address_has(host: str, more: list[str], names: set[str] | None) -> None:
    assert allowed_hosts(host, more) == names
    assert is_loopback(host) == (host in ("127.0.0.1", "::1", "127.0.0.2"))
    assert in_url(host) == ("[::1]" if host == "::1" else host)
    assert not more or passes(allowed_hosts(host, more), host="BOX:8080")


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil", "https://chat.example.evil", "http://chat.example", "x",
     "http://[", "http://[::1", "//[x]"],
)  # fmt: skip
def test_other_origins_are_refused(origin: str) -> None:
    assert not passes(origins=CHAT, origin=origin)
    assert not passes(method="POST", origin=origin)
    assert not passes(path="/", origin=origin, sec_fetch_mode="navigate")
    assert passes(origins=frozenset({"*"}), origin=origin)


def test_what_a_browser_sends_for_another_site_is_refused_without_an_origin_too() -> None:
    """As it does for images, scripts and links."""
    for path in ("/", "/metrics", "/v1/duo/events", "/health"):
        assert not passes(path=path, sec_fetch_site="cross-site")
        assert not passes(path=path, sec_fetch_site="cross-site", origins=CHAT)
        assert passes(path=path, sec_fetch_site="cross-site", origins=CHAT, origin="https://chat.example")
        assert all(passes(path=path, sec_fetch_site=site) for site in ("none", "same-origin", "same-site"))
    assert passes(path="/", sec_fetch_site="cross-site", sec_fetch_mode="navigate"), "a link leads to the page"
    assert not passes(path="/metrics", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert passes(origin="http://localhost"), "its own"


def test_a_websocket_that_is_refused_is_closed_before_it_is_accepted() -> None:
    client = TestClient(Guard(PlainTextResponse("passed"), LOCAL), base_url="http://evil.example")
    with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect(ROUTE):
        pass
    assert refused.value.code == 1008


# Keys

KEYS = ("sk-one", "sk-two")


def status(path: str = "/v1/models", method: str = "GET", **headers: str) -> int:
    client = TestClient(Guard(PlainTextResponse("passed"), None, keys=KEYS, has_page=True))
    answer = client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    if answer.status_code != 200:
        assert_error(answer, 401, "the API key is missing or wrong")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert not any(key in answer.text for key in KEYS)
    return int(answer.status_code)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_passes_in_either_header(key: str) -> None:
    for headers in ({"authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}, {"x_api_key": key}):
        assert status(**headers) == 200


WRONG_KEYS: list[dict[str, str]] = [
    *({"authorization": value} for value in (
        "", "Bearer", "Bearer sk-on", "Bearer sk-onex", "Bearer SK-ONE", "Bearer sk-one,sk-two", "Basic sk-one",
        "sk-one", "Bearer " + "x" * 10_000,
    )),
    {}, {"x_api_key": ""}, {"x_api_key": "sk-none"}, {"x_api_key": "sk-one", "authorization": "Bearer sk-none"},
    {"cookie": "key=sk-one"},
]  # fmt: skip


@pytest.mark.parametrize("headers", WRONG_KEYS, ids=lambda headers: str(headers)[:40])
def test_a_missing_or_wrong_key_is_refused(headers: dict[str, str]) -> None:
    for path in ("/metrics", "/nowhere", "/health/", "/v1/draft/", "/page"):
        assert status(path, **headers) == 401
    assert status("/", "POST", **headers) == status("/page/a.js", "PUT", **headers) == 401


def test_health_preflights_remote_drafts_and_the_page_need_no_key() -> None:
    for path in ("/health", "/v1/health", ROUTE, "/", "/page/a.js"):
        assert status(path) == status(path, "HEAD") == status(path, authorization="Bearer sk-none") == 200
    assert status(method="OPTIONS") == 200

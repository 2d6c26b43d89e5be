"""Which requests pass: Host (DNS rebinding), Origin and Sec-Fetch-Site (pages of other sites), keys."""

from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from duo.http.guard import LOOPBACK_NAMES, ROUTE, Guard, allowed_hosts, in_url, is_loopback
from tests.serving import assert_error

LOCAL = allowed_hosts("127.0.0.1")
CHAT = frozenset({"https://chat.example"})
KEYS = ("sk-one", "sk-two")


def status(
    path: str = "/v1/models",
    method: str = "GET",
    hosts: frozenset[str] | None = None,
    origins: frozenset[str] = frozenset(),
    keys: tuple[str, ...] = (),
    **headers: str,
) -> int:
    """Of the answer to a request; a refusal is an error in OpenAI's shape."""
    guard = Guard(PlainTextResponse("passed"), hosts, origins, keys, has_page=True)
    client = TestClient(guard, base_url="http://localhost")
    answer = client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    if answer.status_code == 401:
        assert_error(answer, 401, "the API key is missing or wrong")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert not any(key in answer.text for key in keys)
    elif answer.status_code != 200:
        assert_error(answer, 403, "not allowed: start the lead with --")
    return int(answer.status_code)


# tests/attacks/test_access.py has many more names, origins and keys that are refused.


def test_other_names_are_refused() -> None:
    """A page may let its own name point to this machine: DNS rebinding."""
    for host in ("evil.example", "localhost.evil", ""):
        assert {status(path, hosts=LOCAL, host=host) for path in ("/", "/health", ROUTE)} == {403}


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
    assert not more or status(hosts=allowed_hosts(host, more), host="BOX:8080") == 200


def test_other_origins_are_refused() -> None:
    for origin in ("https://evil.example", "null", "https://chat.example.evil"):
        assert status(origins=CHAT, origin=origin) == status(method="POST", origin=origin) == 403
        assert status("/", origin=origin, sec_fetch_mode="navigate") == 403
        assert status(origins=frozenset({"*"}), origin=origin) == 200


def test_what_a_browser_sends_for_another_site_is_refused_without_an_origin_too() -> None:
    """As it does for images, scripts and links."""
    foreign: dict[str, Any] = {"sec_fetch_site": "cross-site"}
    for path in ("/", "/metrics", "/v1/duo/events", "/health"):
        assert status(path, **foreign) == status(path, origins=CHAT, **foreign) == 403
        assert status(path, origins=CHAT, origin="https://chat.example", **foreign) == 200
        assert {status(path, sec_fetch_site=site) for site in ("none", "same-origin", "same-site")} == {200}
    assert status("/", sec_fetch_mode="navigate", **foreign) == 200, "a link leads to the page"
    assert status("/metrics", sec_fetch_mode="navigate", **foreign) == 403
    assert status(origin="http://localhost") == 200, "its own"


def test_a_websocket_that_is_refused_is_closed_before_it_is_accepted() -> None:
    client = TestClient(Guard(PlainTextResponse("passed"), LOCAL), base_url="http://evil.example")
    with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect(ROUTE):
        pass
    assert refused.value.code == 1008


def test_each_key_passes_in_either_header() -> None:
    for key in KEYS:
        assert status(keys=KEYS, authorization=f"Bearer {key}") == status(keys=KEYS, x_api_key=key) == 200
        assert status(keys=KEYS, authorization=f"bearer  {key}") == 200


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-on"}, {"x_api_key": "sk-none"}], ids=str)
def test_a_missing_or_wrong_key_is_refused(headers: dict[str, Any]) -> None:
    closed = [(path, "GET") for path in ("/metrics", "/nowhere", "/health/", "/v1/draft/", "/page")]
    closed += [("/", "POST"), ("/page/a.js", "PUT")]
    assert {status(*request, keys=KEYS, **headers) for request in closed} == {401}
    opened = [
        (path, method) for path in ("/health", "/v1/health", ROUTE, "/", "/page/a.js") for method in ("GET", "HEAD")
    ]
    assert {status(*request, keys=KEYS, **headers) for request in [*opened, ("/v1/models", "OPTIONS")]} == {200}

"""Which requests pass: API keys, Host (DNS rebinding) and Origin (pages of other sites)."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from duo.link import guard
from duo.link.guard import LOOPBACK_NAMES, Guard, Rules, allowed_hosts, in_url, is_loopback
from duo.link.messages import ROUTE
from tests.serving import assert_error


def ask(rules: Rules, path: str = "/v1/models", method: str = "GET", **headers: str) -> int:
    """The status; a refusal is an error in OpenAI's shape."""
    client = TestClient(Guard(PlainTextResponse("passed"), rules), base_url="http://localhost")
    answer = client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    if answer.status_code != 200:
        assert_error(answer, answer.status_code)
        assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)
        assert not any(key in answer.text for key in rules.keys)
    return int(answer.status_code)


KEYS = Rules(keys=("sk-one", "sk-two"))


@pytest.mark.parametrize("key", KEYS.keys)
def test_each_key_passes_in_either_header(key: str) -> None:
    assert ask(KEYS, authorization=f"Bearer {key}") == 200
    assert ask(KEYS, authorization=f"bearer  {key}") == 200
    assert ask(KEYS, x_api_key=key) == 200


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
    for path in ("/v1/models", "/metrics", "/nowhere", "/health/", "//health", "/v1/draft/", "/v1/completions"):
        assert ask(KEYS, path, **headers) == 401


def test_health_preflights_and_remote_drafts_need_no_key() -> None:
    for path in ("/health", "/v1/health", ROUTE):
        assert ask(KEYS, path) == 200
        assert ask(KEYS, path, authorization="Bearer sk-none") == 200
    assert ask(KEYS, method="OPTIONS") == 200
    assert ask(Rules()) == 200


def test_what_is_public_is_read_without_a_key() -> None:
    rules = Rules(keys=KEYS.keys, public=frozenset({"/", "/page/a.js"}), hosts=allowed_hosts("127.0.0.1"))
    for path in rules.public:
        assert [ask(rules, path, method) for method in ("GET", "HEAD")] == [200, 200]
        assert [ask(rules, path, method) for method in ("POST", "PUT")] == [401, 401]
        assert ask(rules, path, host="evil.example") == ask(rules, path, origin="https://evil.example") == 403
    assert [ask(rules, path) for path in ("/page", "/page/", "/page/a.js/", "/page/A.js")] == [401, 401, 401, 401]


LOCAL = Rules(hosts=allowed_hosts("127.0.0.1"))


@pytest.mark.parametrize("host", ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:5555", "[::1]", "[::1]:5555"])
def test_names_of_this_machine_pass(host: str) -> None:
    assert ask(LOCAL, host=host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::2]", "", "localhost@evil", "x" * 5000]
)
def test_other_names_are_refused(host: str) -> None:
    """A page may let its own name point to this machine: DNS rebinding."""
    assert ask(LOCAL, host=host) == 403
    assert ask(LOCAL, ROUTE, host=host) == 403


def test_allowed_names_pass_in_any_case() -> None:
    rules = Rules(hosts=allowed_hosts("127.0.0.1", ["Lead.example"]))
    assert ask(rules, host="LEAD.example:8080") == 200
    assert ask(rules, host="lead.example.evil") == 403


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


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil", "https://chat.example.evil", "http://chat.example", "x",
     "http://[", "http://[::1", "//[x]"],
)  # fmt: skip
def test_other_origins_are_refused(origin: str) -> None:
    assert ask(Rules(origins=frozenset({"https://chat.example"})), origin=origin) == 403
    assert ask(Rules(), method="POST", origin=origin) == 403


def test_origins_that_pass() -> None:
    assert ask(Rules(), origin="http://localhost") == 200, "its own"
    assert ask(Rules(origins=frozenset({"https://chat.example"})), origin="https://chat.example") == 200
    assert ask(Rules(origins=frozenset({"*"})), origin="https://any.example") == 200


def test_a_websocket_that_is_refused_is_closed_before_it_is_accepted() -> None:
    client = TestClient(Guard(PlainTextResponse("passed"), LOCAL), base_url="http://evil.example")
    with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect(ROUTE):
        pass
    assert refused.value.code == 1008


def test_too_many_requests_are_refused_but_health_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_REQUESTS", 2)
    may_end = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "http" and (await receive()).get("more_body"):
            pass
        if scope["path"] == "/slow":
            await may_end.wait()
        if scope["path"] == "/fault":
            raise ValueError("fault")
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def main() -> None:
        guarded = Guard(app, Rules(keys=("key",)))

        half: Message = {"type": "http.request", "body": b"{", "more_body": True}
        sent_rest = asyncio.Event()

        async def rest() -> Message:
            await sent_rest.wait()
            return {"type": "http.request"}

        async def status(path: str, kind: str = "http", key: bytes = b"key", *, slowly: bool = False) -> int | None:
            sent: list[Message] = []
            received = iter([half] if slowly else [])

            async def receive() -> Message:
                return next(received, None) or (await rest() if slowly else {"type": "http.request"})

            async def send(message: Message) -> None:
                sent.append(message)

            await guarded({"type": kind, "path": path, "headers": [(b"x-api-key", key)]}, receive, send)
            return next((message.get("status") for message in sent), None)

        late = [asyncio.create_task(status("/v1/models", slowly=True)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await status("/v1/models") == 200, "requests whose bodies are incomplete do not count"
        slow = [asyncio.create_task(status("/slow")) for _ in range(2)]
        await asyncio.sleep(0)
        sent_rest.set()
        assert await asyncio.gather(*late) == [503] * 3
        assert await status("/v1/models") == 503
        assert await status("/v1/models", key=b"none") == 401
        assert await status("/health") == await status("/v1/health") == 200
        assert await status(ROUTE, "websocket") is None, "it passes"
        may_end.set()
        assert await asyncio.gather(*slow) == [200, 200]
        for _ in range(3):
            with pytest.raises(ValueError, match="fault"):
                await status("/fault")
        assert await status("/v1/models") == 200

    asyncio.run(main())

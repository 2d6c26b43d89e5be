"""API keys, the limit on requests in progress, and the header that tells about misspelt fields and other models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from duo.link.messages import ROUTE
from duo.server.access import MAX_REQUESTS, WARNING_HEADER, Access
from tests.serving import assert_error

KEYS = ("sk-one", "sk-two")
PUBLIC = frozenset({"/", "/page/a.js"})


def status(path: str = "/v1/models", method: str = "GET", **headers: str) -> int:
    client = TestClient(Access(PlainTextResponse("passed"), KEYS, PUBLIC))
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
    for path in ("/metrics", "/nowhere", "/health/", "/v1/draft/", "/page", "/page/a.js/", "/page/A.js"):
        assert status(path, **headers) == 401
    assert status("/", "POST", **headers) == status("/page/a.js", "PUT", **headers) == 401


def test_health_preflights_remote_drafts_and_the_page_need_no_key() -> None:
    for path in ("/health", "/v1/health", ROUTE, *PUBLIC):
        assert status(path) == status(path, "HEAD") == status(path, authorization="Bearer sk-none") == 200
    assert status(method="OPTIONS") == 200


def test_too_many_requests_are_refused_but_health_is_not() -> None:
    may_end = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/slow":
            await may_end.wait()
        if scope["path"] == "/fault":
            raise ValueError("fault")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    access = Access(app)

    async def status(path: str, *received: Message | asyncio.Event) -> int:
        sent: list[Message] = []
        messages: Iterator[Any] = iter([*received, {"type": "http.request"}])

        async def receive() -> Message:
            message = next(messages)
            if isinstance(message, asyncio.Event):
                await message.wait()
                message = next(messages)
            return cast(Message, message)

        async def send(message: Message) -> None:
            sent.append(message)

        await access({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)
        return int(sent[0]["status"])

    async def main() -> None:
        half: Any = {"type": "http.request", "body": b"{", "more_body": True}
        rest = asyncio.Event()
        late = [asyncio.create_task(status("/v1/models", half, rest)) for _ in range(3)]
        slow = [asyncio.create_task(status("/slow")) for _ in range(MAX_REQUESTS - 1)]
        await asyncio.sleep(0)
        assert await status("/v1/models") == 200, "requests whose bodies are incomplete do not count"
        slow.append(asyncio.create_task(status("/slow")))
        await asyncio.sleep(0)
        rest.set()
        assert await asyncio.gather(*late) == [503] * 3
        assert await status("/v1/models") == 503
        assert await status("/health") == await status("/v1/health") == 200
        may_end.set()
        assert set(await asyncio.gather(*slow)) == {200}
        for _ in range(MAX_REQUESTS):
            with pytest.raises(ValueError, match="fault"):
                await status("/fault")
        assert await status("/v1/models") == 200

    asyncio.run(main())


# The header

HINT = 'unknown field "temprature": did you mean "temperature"?'
OTHER = "unknown model 'gpt\\xe9\\n': 'scripted' answers"
FIELDS: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/apply-template"])
@pytest.mark.parametrize("stream", [True, False])
def test_misspelt_fields_and_other_models_are_told_in_a_header(client: TestClient, path: str, stream: bool) -> None:
    def told(**more: Any) -> str | None:
        answer = client.post(path, json=FIELDS | {"stream": stream} | more)
        assert answer.status_code == 200, answer.text
        return answer.headers.get(WARNING_HEADER)

    assert told(temprature=0.5) == HINT
    assert told(model="gpté\n") == OTHER
    assert told(model="gpté\n", temprature=0.5) == f"{HINT}; {OTHER}"
    assert len(told(model="gpt" * 9000) or "") < 200
    for name in (None, "", "default", "scripted"):
        assert told(model=name, cache_prompt=True) is None


def test_it_is_told_of_large_requests_too(client: TestClient) -> None:
    """They are parsed on another thread."""
    answer = client.post("/tokenize", json={"content": "a" * 2**17, "with_piece": True})
    assert answer.headers[WARNING_HEADER] == 'unknown field "with_piece": did you mean "with_pieces"?'


def test_an_error_that_a_misspelt_field_may_explain_quotes_it(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"mesages": FIELDS["messages"]})
    assert_error(answer, 400, r'^messages must not be empty \(unknown field "mesages": did you mean "messages"\?\)$')
    wrong = {"prompt": "a", "temprature": 1, "json_schema": {"type": "x" * 9000}}
    assert_error(client.post("/v1/completions", json=wrong), 400, r"temperature\"\?\)$")

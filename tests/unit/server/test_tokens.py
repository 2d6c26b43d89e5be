"""Tokenising for requests: its limits, and that nobody else waits for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.server import parse_request
from duo.server.lead_server import Lead
from duo.server.parse_request import MAX_OPTIONS
from tests.scripted import N_CTX, ScriptedModel, ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.exchange import Exchange, until

MIB = 2**20


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tokenised."""

    def fail(*_: Any, **__: Any) -> list[int]:
        raise AssertionError

    monkeypatch.setattr(ScriptedModel, "tokenize", fail)


@pytest.mark.usefixtures("never")
def test_a_prompt_that_cannot_fit_is_not_tokenised(client: TestClient) -> None:
    text = "a" * (N_CTX + 1)  # a token of this vocabulary is one byte
    for path, fields in (("/v1/completions", {"prompt": text}), ("/v1/chat/completions", chat(text))):
        answer = client.post(path, json=fields)
        assert_error(answer, 400, rf"^the prompt has \d+ bytes, too many for the context {N_CTX}$")
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.usefixtures("never")
def test_a_text_that_takes_too_long_is_not_tokenised(
    client: TestClient, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot.n_ctx = MIB // 8
    slot.target.longest_token = 256
    for path, fields in (
        ("/tokenize", {"content": "é" * (MIB // 2 + 1)}),
        ("/v1/completions", {"prompt": "a" * (MIB + 2)}),
        ("/v1/chat/completions", {"messages": chat("a" * (MIB // 4 + 1))["messages"] * 4}),
    ):
        assert_error(client.post(path, json=fields), 400, rf"^the text has \d+ bytes: at most {MIB} can be tokenised")
    monkeypatch.setattr(ScriptedModel, "n_unknown", lambda _, text: text.count("\t"))
    for path, fields in (("/tokenize", {"content": "\t" * (MIB // 2)}), ("/v1/completions", {"prompt": "\t" * MIB})):
        assert_error(client.post(path, json=fields), 400, r"^\d+ characters of the text are not in the vocabulary")


@pytest.mark.parametrize("field", ["tools", "logit_bias", "json_schema", "unknown"])
def test_only_the_text_of_a_request_may_be_large(client: TestClient, field: str) -> None:
    nested = f"[{'[],' * (MAX_OPTIONS // 3)}[]]"
    said = f"at most {MAX_OPTIONS} bytes besides its text"
    for body in (f'{{"prompt": "a", "{field}": {nested}}}', f'{{"{field}": {nested}, "prompt": "a", "{field}": []}}'):
        assert_error(client.post("/v1/completions", content=body), 413, said)
    twice = f'{{"prompt": {nested}, "prompt": "a"}}'
    assert_error(client.post("/v1/completions", content=twice), 413, said)


# Threads


@pytest.mark.anyio
async def test_others_are_answered_while_slow_requests_wait_and_few_do(
    lead: Lead, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts and schemas wait for one another, however they end."""
    monkeypatch.setattr(parse_request, "MAX_SLOW", 4)
    slot.n_ctx = MIB
    long, gate, begun = 100_000, threading.Event(), list[int]()
    tokenize = ScriptedModel.tokenize

    def wait(self: ScriptedModel, text: str, **options: bool) -> list[int]:
        if len(text) >= long:
            begun.append(len(text))
            assert gate.wait(60)
        return tokenize(self, text, **options)

    monkeypatch.setattr(ScriptedModel, "tokenize", wait)

    for n in (1, 5):
        gate.clear()
        slow: list[Exchange] = [
            Exchange(lead.app, "/tokenize", content="a" * long),
            Exchange(lead.app, "/v1/completions", prompt="a" * long, max_tokens=0),
            Exchange(lead.app, "/v1/chat/completions", **chat("a" * long), max_tokens=0),
            Exchange(lead.app, "/v1/completions", prompt="a" * long, temperature=-1),
        ]
        await until(lambda n=n: len(begun) == n)  # type: ignore[misc]
        for schema, status in ((None, 200), ({}, 503)):
            other = Exchange(lead.app, prompt="a", json_schema=schema)
            assert await asyncio.wait_for(other.status(), 60) == status
        assert len(begun) == n
        gate.set()
        assert [await asyncio.wait_for(one.status(), 60) for one in slow] == [200, 200, 200, 400]

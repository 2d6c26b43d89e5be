"""The limits of what is tokenised for a request."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.server.parse_request import MAX_OPTIONS
from tests.scripted import N_CTX, ScriptedModel, ScriptedSlot
from tests.serving import assert_error

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

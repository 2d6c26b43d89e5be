"""The JSON of logprobs: which tokens an answer shows, and their texts, bytes and offsets."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.scripted import TEXT, ScriptedModel, ScriptedSlot
from tests.unit.server.conftest import CHAT, COMPLETIONS, answer_of, chunks_of


def test_tokens_with_their_texts_bytes_and_offsets(
    client: TestClient, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a character count as one; a completion always has the chosen token; a special one is spelt."""
    monkeypatch.setattr(ScriptedModel, "spelling", lambda _, tokens: b"<%d>" % tokens[0])
    slot.text = "aé!"
    found = answer_of(client, CHAT, logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]
    top = [{"token": "<0>", "logprob": -1.0, "bytes": None}]
    tokens = (("a", -100.0, 97), ("\ufffd", -198.0, 0xC3), ("\ufffd", -172.0, 0xA9), ("!", -36.0, 33))
    assert found["refusal"] is None
    assert found["content"] == [
        {"token": name, "logprob": logprob, "bytes": [byte], "top_logprobs": top} for name, logprob, byte in tokens
    ]
    assert answer_of(client, COMPLETIONS, logprobs=1)["choices"][0]["logprobs"] == {
        "tokens": [name for name, _, _ in tokens],
        "token_logprobs": [logprob for _, logprob, _ in tokens],
        "top_logprobs": [{"<0>": -1.0, name: logprob} for name, logprob, _ in tokens],
        "text_offset": [0, 1, 1, 2],
    }


@pytest.mark.parametrize(
    ("path", "fields", "n"),
    [
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
        (CHAT, {"n_probs": 3}, 3),
        (CHAT, {"logprobs": False, "n_probs": 0}, None),
        (COMPLETIONS, {"logprobs": 0}, 0),
        (COMPLETIONS, {"logprobs": 20}, 20),
        (COMPLETIONS, {"logprobs": True}, 1),
        (COMPLETIONS, {"n_probs": 3}, 3),
        (COMPLETIONS, {"logprobs": False}, None),
        (COMPLETIONS, {}, None),
    ],
)
def test_how_many_are_asked_for(
    client: TestClient, slot: ScriptedSlot, path: str, fields: dict[str, Any], n: int | None
) -> None:
    choice = answer_of(client, path, **fields)["choices"][0]
    assert slot.requests[-1].config.n_logprobs == n
    assert (choice["logprobs"] is None) == (n is None)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stop", [None, "France", "pit"])
def test_a_stream_has_those_of_the_whole_answer(client: TestClient, path: str, stop: str | None) -> None:
    asked: dict[str, Any] = {"logprobs": 2 if path == COMPLETIONS else True, "stop": stop}
    choice = answer_of(client, path, **asked)["choices"][0]
    text, whole = choice["text"] if path == COMPLETIONS else choice["message"]["content"], choice["logprobs"]
    assert text == (TEXT.partition(stop)[0] if stop else TEXT)
    choices = [chunk["choices"][0] for chunk in chunks_of(client, path, **asked)]
    chunks = [chunk["logprobs"] for chunk in choices if chunk["logprobs"]]
    assert len(chunks) > 3
    assert {name: list(chain(*(chunk[name] or () for chunk in chunks))) for name in whole} == {
        name: value or [] for name, value in whole.items()
    }
    tokens = whole["tokens"] if path == COMPLETIONS else [one["token"] for one in whole["content"]]
    assert "".join(tokens) == text, "neither an end token nor a stop string"

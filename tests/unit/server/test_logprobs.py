"""The JSON of logprobs: which tokens an answer shows, and their texts, bytes and offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import msgspec
import pytest
from starlette.testclient import TestClient

from duo.llama.model import Model
from duo.server.response_formatter import LogprobsFormatter
from duo.spec.types import Step, TokenLogprobs
from tests.scripted import TEXT, ScriptedSlot
from tests.unit.server.conftest import CHAT, COMPLETIONS, answer_of, chunks_of

PIECES = (b"", b"Par", b"is", "é".encode()[:1], "é".encode()[1:], b"\n\n", b"!\n", b"")
END, PAR, IS, FIRST_HALF, SECOND_HALF, STOP, HIDES_A_PART, SPECIAL = range(8)


class Spelled:
    """What is asked of a Model."""

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def spelling(self, tokens: Sequence[int]) -> bytes:
        return b"".join(b"<%d>" % token for token in tokens)


def step(*tokens: int, shown: Sequence[bytes], top: Sequence[int] = (), logprob: float = -0.5) -> Step:
    likely = tuple((token, -0.25 * (i + 1)) for i, token in enumerate(top))
    logprobs = tuple(TokenLogprobs(token, logprob, likely) for token in tokens)
    return Step(tokens, 0, tuple(shown), logprobs=logprobs)


def answer(*, chat: bool = True) -> LogprobsFormatter:
    return LogprobsFormatter(cast("Model", Spelled()), chat=chat)


def taken(logprobs: LogprobsFormatter, *steps: Step) -> Any:
    for one in steps:
        logprobs.push(one)
    return json.loads(msgspec.json.encode(logprobs.take()))


def test_a_chat() -> None:
    found = taken(answer(), step(PAR, IS, shown=(b"Par", b"is"), top=(IS, END)))
    top = [
        {"token": "is", "logprob": -0.25, "bytes": [105, 115]},
        {"token": "<0>", "logprob": -0.5, "bytes": None},
    ]
    assert found == {
        "content": [
            {"token": "Par", "logprob": -0.5, "bytes": [80, 97, 114], "top_logprobs": top},
            {"token": "is", "logprob": -0.5, "bytes": [105, 115], "top_logprobs": top},
        ],
        "refusal": None,
    }


def test_a_completion_always_has_the_chosen_token() -> None:
    found = taken(answer(chat=False), step(PAR, shown=(b"Par",)), step(IS, shown=(b"is",), top=(PAR, END)))
    assert found == {
        "tokens": ["Par", "is"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"Par": -0.5}, {"Par": -0.25, "<0>": -0.5, "is": -0.5}],
        "text_offset": [0, 3],
    }


def test_parts_of_a_character_have_their_bytes_and_count_as_one() -> None:
    steps = step(PAR, FIRST_HALF, shown=(b"Par", b"")), step(SECOND_HALF, IS, shown=("é".encode(), b"is"))
    content = taken(answer(), *steps)["content"]
    assert [one["token"] for one in content] == ["Par", "\ufffd", "\ufffd", "is"]
    assert bytes(chain(*(one["bytes"] for one in content))) == "Paréis".encode()
    assert taken(answer(chat=False), *steps)["text_offset"] == [0, 3, 3, 4]


# Over the API


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

"""Answers: what a text looks like to a client, whole and streamed."""

from itertools import chain
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.llama.chat_template import ChatTemplate
from tests.chat_templates import HERMES
from tests.scripted import N_CTX, TEXT, ScriptedModel, ScriptedSlot
from tests.unit.server.conftest import CHAT, COMPLETIONS, answer_of, chunks_of


def choice_of(document: dict[str, Any]) -> dict[str, Any]:
    (choice,) = document["choices"]
    return dict(choice)


def text_of(document: dict[str, Any]) -> str:
    choice = choice_of(document)
    return str(choice.get("text", choice.get("delta", {}).get("content", "")))


# tests/process/server/curl.txt records whole answers and streams with all of their fields.


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_each_answer_has_an_id_of_its_own(client: TestClient, path: str) -> None:
    whole = [answer_of(client, path), answer_of(client, path.removeprefix("/v1"))]
    assert whole[0]["choices"] == whole[1]["choices"]
    assert len({document["id"] for document in [*whole, *chunks_of(client, path)]}) == 3


def test_timings_count_the_prompt_the_text_and_the_candidates(client: TestClient) -> None:
    whole = answer_of(client, COMPLETIONS, prompt="abcdef", max_tokens=9)["timings"]
    streamed = chunks_of(client, COMPLETIONS, prompt="abcdefgh", max_tokens=9)[-1]["timings"]
    counts = ("cache_n", "prompt_n", "predicted_n", "draft_n", "draft_n_accepted")
    assert [whole[name] for name in counts] == [0, 7, 9, 6, 6]
    assert [streamed[name] for name in counts] == [7, 2, 9, 6, 6]
    for name in ("prompt", "predicted"):
        assert all(whole[f"{name}_{what}"] > 0 for what in ("ms", "per_token_ms", "per_second"))


def test_a_chunk_tells_what_wrote_its_characters_where_asked(client: TestClient, slot: ScriptedSlot) -> None:
    slot.text = "aéiou"
    pieces = [(text_of(chunk), chunk["duo"]) for chunk in chunks_of(client, COMPLETIONS, duo=True) if "duo" in chunk]
    assert pieces == [
        ("aé", {"id": 1, "tokens": 3, "sources": [["draft", 1], ["target", 1]]}),
        ("iou", {"id": 1, "tokens": 3, "sources": [["draft", 2], ["target", 1]]}),
    ]
    for fields in ({}, {"duo": False}):
        assert not any("duo" in chunk for chunk in chunks_of(client, COMPLETIONS, **fields))


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"stop": ["never", "the", "ever"]}, "Paris is ", "stop"),
        ({"max_tokens": len(TEXT) + 9, "ignore_eos": True}, TEXT + TEXT[:9], "length"),
        ({"prompt": "a" * (N_CTX - 5), "ignore_eos": True}, TEXT[:4], "length"),  # the context is full
    ],
)
def test_where_a_text_ends(client: TestClient, fields: dict[str, Any], text: str, reason: str) -> None:
    whole, chunks = answer_of(client, COMPLETIONS, **fields), chunks_of(client, COMPLETIONS, **fields)
    assert text_of(whole) == "".join(map(text_of, chunks)) == text
    assert choice_of(whole)["finish_reason"] == choice_of(chunks[-1])["finish_reason"] == reason


# Reasoning and calls

TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
THINKS: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}


def message_of(choice: dict[str, Any]) -> dict[str, Any]:
    """A message without the ids of its calls, which differ."""
    message = dict(choice["message"])
    if calls := message.get("tool_calls"):
        assert len({call["id"] for call in calls}) == len(calls)
        message["tool_calls"] = [call["function"] for call in calls]
    return message


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice that the deltas of a stream add up to."""
    message: dict[str, Any] = {"content": ""}
    for delta in (choice_of(chunk)["delta"] for chunk in chunks):
        for name, value in delta.items():
            message[name] = value if name == "role" else message.get(name, type(value)()) + value
    indices = [call.pop("index") for call in message.get("tool_calls", ())]
    assert indices == list(range(len(indices)))
    return {"message": message, "finish_reason": choice_of(chunks[-1])["finish_reason"]}


FUNCTION = {"name": "now", "arguments": '{"a": 1}'}


# tests/unit/chat/test_parser.py has what is a thought or a call.
@pytest.mark.parametrize(
    ("fields", "text", "message", "reason"),
    [
        (THINKS, "Hm.\n</think>\n\nYes.", {"reasoning_content": "Hm.", "content": "Yes."}, "stop"),
        (THINKS, "Ü é é.\n</think>\n\nÄ.", {"reasoning_content": "Ü é é.", "content": "Ä."}, "stop"),
        (THINKS | {"max_tokens": 2}, "Hm.\n", {"reasoning_content": "Hm", "content": ""}, "length"),
        (THINKS | {"reasoning_format": "none"}, "Hm.\n</think> Yes.", {"content": "Hm.\n</think> Yes."}, "stop"),
        ({"tools": TOOLS}, f"{CALL}\n{CALL}", {"content": None, "tool_calls": [FUNCTION] * 2}, "tool_calls"),
        ({"tools": TOOLS, "max_tokens": 40}, CALL, {"content": CALL[:40]}, "length"),
        ({"tools": TOOLS, "stop": "</tool"}, CALL, {"content": CALL[: -len("</tool_call>")]}, "stop"),
        ({"tools": TOOLS, "tool_choice": "none"}, CALL, {"content": CALL}, "stop"),
        (NO_THOUGHT, "<think>Hm.</think>Yes.", {"reasoning_content": "Hm.", "content": "Yes."}, "stop"),
        ({"tools": TOOLS} | THINKS, f"Hm. </think>{CALL}",
         {"content": None, "reasoning_content": "Hm.", "tool_calls": [FUNCTION]}, "tool_calls"),
        ({}, CALL, {"content": CALL}, "stop"),
    ],
)  # fmt: skip
def test_reasoning_and_calls_whole_and_streamed(
    client: TestClient, slot: ScriptedSlot, fields: dict[str, Any], text: str, message: dict[str, Any], reason: str
) -> None:
    slot.target.chat_template = slot.target.tool_template = ChatTemplate(HERMES)
    slot.text = text
    whole, streamed = choice_of(answer_of(client, CHAT, **fields)), joined(chunks_of(client, CHAT, **fields))
    assert message_of(whole) == {"role": "assistant", **message}
    assert message_of(streamed) == {"role": "assistant", **message, "content": message["content"] or ""}
    assert whole["finish_reason"] == streamed["finish_reason"] == reason
    *_, last = chunks_of(client, CHAT, **fields, stream_options={"include_usage": True})
    for usage in (last["usage"], answer_of(client, CHAT, **fields)["usage"]):
        n_reasoning = usage.get("completion_tokens_details", {"reasoning_tokens": 0})["reasoning_tokens"]
        assert n_reasoning == len(message.get("reasoning_content", "").encode())  # a token is a byte
        # None are said to be in a content that has the thought.
        assert ("completion_tokens_details" in usage) == ("reasoning_format" not in fields)


# Logprobs: which tokens an answer shows, and their texts, bytes and offsets


def test_tokens_with_their_texts_bytes_and_offsets(
    client: TestClient, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a character count as one; a completion always has the chosen token; a special one is spelt."""
    monkeypatch.setattr(ScriptedModel, "spelling", lambda _, tokens: b"<%d>" % tokens[0])
    slot.text = "aé!"
    found = choice_of(answer_of(client, CHAT, logprobs=True, top_logprobs=1))["logprobs"]
    top = [{"id": 0, "token": "<0>", "logprob": -1.0, "bytes": None}]
    tokens = (("a", -100.0, 97), ("\ufffd", -198.0, 0xC3), ("\ufffd", -172.0, 0xA9), ("!", -36.0, 33))
    assert found["refusal"] is None
    assert found["content"] == [
        {"id": -logprob, "token": name, "logprob": logprob, "bytes": [byte], "top_logprobs": top}
        for name, logprob, byte in tokens
    ]
    names = ["a", "bytes:\\xc3", "bytes:\\xa9", "!"]  # as in OpenAI's API, where names are keys
    assert choice_of(answer_of(client, COMPLETIONS, logprobs=1))["logprobs"] == {
        "tokens": names,
        "token_logprobs": [logprob for _, logprob, _ in tokens],
        "top_logprobs": [{"<0>": -1.0, name: logprob} for name, (_, logprob, _) in zip(names, tokens, strict=True)],
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
    choice = choice_of(answer_of(client, path, **fields))
    assert slot.requests[-1].config.n_logprobs == n
    assert (choice["logprobs"] is None) == (n is None)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stop", [None, "France", "pit"])
def test_a_stream_has_those_of_the_whole_answer(client: TestClient, path: str, stop: str | None) -> None:
    asked: dict[str, Any] = {"logprobs": 2 if path == COMPLETIONS else True, "stop": stop}
    choice = choice_of(answer_of(client, path, **asked))
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

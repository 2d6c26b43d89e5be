"""Answers: what a text looks like to a client, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.llama.chat_template import ChatTemplate
from tests.chat_templates import HERMES
from tests.scripted import N_CTX, TEXT, ScriptedSlot
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
    found = [answer_of(client, path), answer_of(client, path.removeprefix("/v1")), *chunks_of(client, path)]
    assert found[0]["choices"] == found[1]["choices"]
    assert [document["id"] for document in found[2:]] == [found[2]["id"]] * (len(found) - 2)
    assert len({document["id"] for document in found}) == 3


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
        ("aé", {"tokens": 3, "sources": [["draft", 1], ["target", 1]]}),
        ("iou", {"tokens": 3, "sources": [["draft", 2], ["target", 1]]}),
    ]
    for fields in ({}, {"duo": False}):
        assert not any("duo" in chunk for chunk in chunks_of(client, COMPLETIONS, **fields))


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"stop": ["never", "the", "ever"]}, "Paris is ", "stop"),
        ({"max_tokens": 5}, "Paris", "length"),
        ({"max_tokens": len(TEXT) + 9, "ignore_eos": True}, TEXT + TEXT[:9], "length"),
        ({"prompt": "a" * (N_CTX - 5), "ignore_eos": True}, TEXT[:5], "length"),  # the context is full
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


def message_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the deltas of a stream add up to."""
    deltas = [choice_of(chunk)["delta"] for chunk in chunks]
    message: dict[str, Any] = {"role": "assistant"}
    for name in ("content", "reasoning_content"):
        if pieces := [delta[name] for delta in deltas if name in delta]:
            message[name] = "".join(pieces)
    if calls := [call for delta in deltas for call in delta.get("tool_calls", ())]:
        assert [call.pop("index") for call in calls] == list(range(len(calls)))
        message["tool_calls"] = calls
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    return message | ({"tool_calls": [call["function"] for call in calls]} if calls else {})


FUNCTION = {"name": "now", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("fields", "text", "message", "reason"),
    [
        (THINKS, "Hm.\n</think>\n\nYes.", {"reasoning_content": "Hm.", "content": "Yes."}, "stop"),
        (THINKS, "Hm.\n", {"reasoning_content": "Hm.", "content": ""}, "stop"),
        (THINKS | {"max_tokens": 2}, "Hm.\n", {"reasoning_content": "Hm", "content": ""}, "length"),
        (THINKS | {"reasoning_format": "none"}, "Hm.\n</think> Yes.", {"content": "Hm.\n</think> Yes."}, "stop"),
        ({"tools": TOOLS}, f"{CALL}\n{CALL}", {"content": None, "tool_calls": [FUNCTION] * 2}, "tool_calls"),
        ({"tools": TOOLS}, f"Wait.\n{CALL}", {"content": "Wait.", "tool_calls": [FUNCTION]}, "tool_calls"),
        ({"tools": TOOLS, "max_tokens": 40}, CALL, {"content": CALL[:40]}, "length"),
        ({"tools": TOOLS, "stop": "</tool"}, CALL, {"content": CALL[: -len("</tool_call>")]}, "stop"),
        ({"tools": TOOLS, "tool_choice": "none"}, CALL, {"content": CALL}, "stop"),
        ({}, "<think>Hm.</think>Yes.", {"reasoning_content": "Hm.", "content": "Yes."}, "stop"),
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
    whole, chunks = answer_of(client, CHAT, **fields), chunks_of(client, CHAT, **fields)
    assert without_ids(choice_of(whole)["message"]) == {"role": "assistant", **message}
    assert without_ids(message_of(chunks)) == {"role": "assistant", **message, "content": message["content"] or ""}
    assert [choice_of(found)["finish_reason"] for found in (whole, chunks[-1])] == [reason] * 2

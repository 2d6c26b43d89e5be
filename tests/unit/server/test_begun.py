"""Answers that the client has begun are continued."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.scripted import FIRST_BYTE, ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import CHAT

MESSAGES, RESPONSES, COUNT, APPLY = "/v1/messages", "/v1/responses", "/v1/messages/count_tokens", "/apply-template"
# As Qwen3's: a thought is shown in the last answer only, and a closed one is part of an answer without.
SOURCE = (
    "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}"
    "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content | trim }}"
    "{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{{ '<think>' if enable_thinking }}{% endif %}"
)
ASKED = {"role": "user", "content": "Where?"}
BEGUN = {"role": "assistant", "content": " Paris is"}
OPEN = "<|user|>Where?<|end|><|assistant|><think>\n\n</think>\n\nParis is"
NEW = f"{OPEN}<|end|><|assistant|>"
CLOSED = f"{OPEN}<|end|>"
NOW = {"name": "now", "parameters": {"type": "object"}}
F = {"function": {"name": "now", "arguments": "{}"}}


@pytest.fixture(autouse=True)
def template(slot: ScriptedSlot, use: Callable[[str], None]) -> None:
    use(SOURCE)
    slot.text = " in France."


def prompt_of(slot: ScriptedSlot) -> str:
    """The prompt of the last request."""
    return bytes(token - FIRST_BYTE for token in slot.requests[-1].prompt if token >= FIRST_BYTE).decode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, OPEN),
        ({"continue_final_message": True, "add_generation_prompt": False}, OPEN),
        ({"continue_final_message": True}, OPEN),
        ({"continue_final_message": "content"}, OPEN),
        ({"add_generation_prompt": False}, OPEN),
        ({"continue_final_message": False}, NEW),
        ({"add_generation_prompt": True}, NEW),
        ({"continue_final_message": False, "add_generation_prompt": False}, CLOSED),
        ({"messages": [ASKED, BEGUN | {"content": "Paris is "}]}, f"{OPEN} "),
        ({"messages": [ASKED, BEGUN | {"content": [{"type": "text", "text": "Paris is"}]}]}, OPEN),
        ({"messages": [ASKED, BEGUN | {"reasoning_content": "Hm."}]}, OPEN.replace("\n\n</th", "\nHm.\n</th", 1)),
        ({"tools": [{"type": "function", "function": NOW}], "tool_choice": "auto"}, OPEN),
        ({"messages": [ASKED, BEGUN | {"content": "Paris is<tool_call>"}]}, f"{OPEN}<tool_call>"),
        ({"messages": [ASKED], "add_generation_prompt": False}, "<|user|>Where?<|end|>"),
        ({"messages": [ASKED]}, "<|user|>Where?<|end|><|assistant|>"),
    ],
)
def test_chats(client: TestClient, slot: ScriptedSlot, fields: dict[str, Any], expected: str) -> None:
    asked = {"messages": [ASKED, BEGUN], **fields}
    answer = client.post(CHAT, json=asked)
    assert answer.status_code == 200, answer.text
    prompt = prompt_of(slot)
    assert prompt[prompt.index("<|user|>") :] == expected
    assert answer.json()["choices"][0]["message"]["content"] == slot.text
    assert answer.json()["usage"]["prompt_tokens"] == len(slot.requests[-1].prompt)
    assert client.post(APPLY, json=asked).json()["prompt"] == prompt


@pytest.mark.parametrize("stream", [False, True])
def test_messages(client: TestClient, slot: ScriptedSlot, stream: bool) -> None:
    for content in ("Paris is", [{"type": "text", "text": "Paris is"}]):
        asked = {"messages": [ASKED, BEGUN | {"content": content}], "max_tokens": 20}
        answer = client.post(MESSAGES, json=asked | {"stream": stream})
        assert answer.status_code == 200
        assert prompt_of(slot) == OPEN
        n_tokens = client.post(COUNT, json=asked).json()["input_tokens"]
        assert n_tokens == len(slot.requests[-1].prompt)
        if not stream:
            assert answer.json()["content"] == [{"type": "text", "text": slot.text}]
            usage = answer.json()["usage"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == n_tokens


def test_responses_continue_messages_that_say_that_they_are_incomplete(client: TestClient, slot: ScriptedSlot) -> None:
    for status, expected in (("incomplete", OPEN), ("in_progress", OPEN), ("completed", NEW), (None, NEW)):
        begun = BEGUN | {"type": "message", "status": status}
        assert client.post(RESPONSES, json={"input": [ASKED, begun]}).status_code == 200
        assert prompt_of(slot) == expected


def test_a_thought_that_is_begun_is_continued(client: TestClient, slot: ScriptedSlot) -> None:
    slot.text = " see.\n</think>\n\nIn France."
    begun = {"role": "assistant", "content": "", "reasoning_content": "Let me"}
    message = client.post(CHAT, json={"messages": [ASKED, begun]}).json()["choices"][0]["message"]
    assert prompt_of(slot) == "<|user|>Where?<|end|><|assistant|><think>\nLet me"
    assert (message["reasoning_content"], message["content"]) == ("see.", "In France.")
    block = {"type": "thinking", "thinking": "Let me", "signature": ""}
    blocks = client.post(MESSAGES, json={"messages": [ASKED, {"role": "assistant", "content": [block]}]}).json()
    assert [one["type"] for one in blocks["content"]] == ["thinking", "text"]


TOOLS = [{"type": "function", "function": NOW}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [ASKED], "continue_final_message": True}, "the last message is not one of the assistant"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other: send one"),
        ({"messages": [ASKED, BEGUN | {"tool_calls": [F]}]}, "has calls of tools, .*: send their results"),
        ({"tools": TOOLS, "tool_choice": "required"}, "cannot have to be a call: send another tool_choice"),
        ({"json_schema": {"type": "object"}}, "cannot have a grammar or a schema"),
        ({"grammar": 'root ::= "a"'}, "cannot have a grammar or a schema"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "cannot have a grammar or a schema"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "has no room for a thought: turn thinking off"),
        ({"reasoning_effort": "high"}, "has no room for a thought: turn thinking off"),
        ({"messages": [ASKED, BEGUN | {"content": "<think>Let"}]}, "ends inside of a thought or a call"),
        (
            {"messages": [ASKED, BEGUN | {"content": "a <tool_call>\n{"}], "tools": TOOLS},
            "ends inside of a thought or a call",
        ),
    ],
)
def test_what_cannot_be_continued(client: TestClient, fields: dict[str, Any], said: str) -> None:
    assert_error(client.post(CHAT, json={"messages": [ASKED, BEGUN], **fields}), 400, said)


def test_what_messages_cannot_continue(client: TestClient, use: Callable[[str], None]) -> None:
    call = {"type": "tool_use", "id": "1", "name": "now", "input": {}}
    asked = {"messages": [ASKED, {"role": "assistant", "content": [call]}], "max_tokens": 9}
    assert "send their results" in client.post(MESSAGES, json=asked).json()["error"]["message"]
    thinking = {"messages": [ASKED, BEGUN], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert "turn thinking off" in client.post(MESSAGES, json=thinking).json()["error"]["message"]
    for counted in (asked, thinking):  # some clients count parts of a conversation
        assert client.post(COUNT, json=counted).json()["input_tokens"] > 20
    use("{{ messages[0].content }}")
    said = client.post(MESSAGES, json={"messages": [ASKED, BEGUN]}).json()["error"]["message"]
    assert "the chat template leaves out the content that is to be continued" in said


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"continue_final_message": False},
        {"messages": [ASKED], "add_generation_prompt": False},
        {"messages": [ASKED], "chat_template_kwargs": {"enable_thinking": True}},
        {"messages": [ASKED], "reasoning_effort": "high"},
        {"messages": [ASKED, BEGUN | {"tool_calls": [F]}]},
        {"messages": [ASKED], "tools": TOOLS, "tool_choice": "none"},
    ],
)
def test_a_chat_has_the_tokens_that_are_counted(client: TestClient, fields: dict[str, Any]) -> None:
    asked = {"messages": [ASKED, BEGUN], **fields}
    found = client.post("/tokenize", json=asked | {"return_token_strs": True})
    assert found.status_code == 200, found.text
    counted = client.post(f"{CHAT}/input_tokens", json=asked).json()["input_tokens"]
    assert found.json()["count"] == len(found.json()["tokens"]) == len(found.json()["token_strs"]) == counted
    if "tool_calls" not in asked["messages"][-1]:
        prompt = client.post(APPLY, json=asked).json()["prompt"]
        assert client.post("/detokenize", json={"tokens": found.json()["tokens"]}).json()["prompt"] == prompt

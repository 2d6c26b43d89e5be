"""Chats: what the template is given, what an answer may have, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.chat_templates import HERMES, OTHER, PLAIN
from tests.scripted import ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import ASKED, CHAT, answer_of

APPLY = "/apply-template"
NOW = {"type": "function", "function": {"name": "now"}}
SHOWS = "{{ messages | tojson }}{{ tools | tojson if tools }}{{ extra }}"


def test_messages_for_the_template(client: TestClient, use: Callable[[str], None]) -> None:
    use(SHOWS)
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": ' {"a": [1, "é"]} '}},
        {"function": {"name": "g", "arguments": {"b": 2}}},
        {"id": "3", "function": {"name": "h", "arguments": ""}},
    ]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "Ann", "extra": 1},
        {"role": "assistant", "content": None, "reasoning_content": "d", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "e"},
    ]
    answer = client.post(APPLY, json={"messages": messages, "chat_template_kwargs": {"extra": 5}})
    assert answer.json() == {
        "prompt": '[{"role": "system", "content": "ab"}, {"role": "user", "content": "c", "name": "Ann"}, '
        '{"role": "assistant", "content": "", "tool_calls": ['
        '{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}, '
        '{"type": "function", "function": {"name": "g", "arguments": {"b": 2}}}, '
        '{"id": "3", "type": "function", "function": {"name": "h", "arguments": {}}}], "reasoning_content": "d"}, '
        '{"role": "tool", "content": "e", "tool_call_id": "1"}]5'
    }


def message_of(client: TestClient, **fields: Any) -> dict[str, Any]:
    return dict(answer_of(client, CHAT, **fields)["choices"][0]["message"])


def function(arguments: Any) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [NOW]}, "this model's chat template has no tools: .* or ask for an answer in JSON, without tools"),
        ({"tools": [NOW], "tool_choice": "none"}, "this model's chat template has no tools"),
        ({"tools": [{"type": "web_search"}]}, "function|type"),
        ({"tools": [NOW] * 257}, "256"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "function"),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"functions": [{"name": "now"}]}, "functions is not supported: send tools"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs must not have 'tools'"),
        *(
            ({"messages": [{"role": "assistant", "tool_calls": [call]}]}, said)
            for call, said in (
                (function("{"), "tool_calls: the arguments of 'f' are not a JSON object"),
                (function('["a"]'), "tool_calls: the arguments of 'f' are not a JSON object"),
                (function("[" * 100_000), "tool_calls: the arguments of 'f' are not a JSON object"),
                (function(5), "arguments"),
                (function("{}") | {"type": "custom"}, "custom"),
            )
        ),
    ],
)
def test_what_is_refused(client: TestClient, fields: dict[str, Any], said: str) -> None:
    assert_error(client.post(CHAT, json=ASKED | fields), 400, said)


def test_a_format_that_is_not_parsed(client: TestClient, use: Callable[[str], None]) -> None:
    use(OTHER)
    asked = ASKED | {"tools": [NOW]}
    said = "writes tool calls in a format that duo does not parse: it parses that of Hermes and Qwen"
    assert_error(client.post(CHAT, json=asked), 400, said)
    assert client.post(APPLY, json=asked | {"tool_choice": "none"}).status_code == 200


def test_thoughts_in_other_tags_are_content(client: TestClient, slot: ScriptedSlot, use: Callable[[str], None]) -> None:
    slot.text = "<think>a</think>"
    for source, content in ((HERMES, ""), (HERMES.replace("think>", "thought>"), slot.text), (PLAIN, slot.text)):
        use(source)
        assert message_of(client)["content"] == content


def test_an_answer_by_a_schema_has_no_thought(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None]
) -> None:
    use("{% if true %}<think>{% endif %}")
    slot.text = '{"a": 1}'
    assert message_of(client)["reasoning_content"] == slot.text
    form = {"type": "json_object"}
    assert message_of(client, response_format=form) == {"role": "assistant", "content": slot.text}

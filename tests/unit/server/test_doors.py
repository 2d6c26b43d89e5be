"""The Responses and the Messages API: what a request asks for, and answers that the SDKs' own types accept."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from duo.server.lead_server import Lead
from duo.server.requests import WARNING_HEADER
from tests.chat_templates import HERMES
from tests.scripted import TEXT, ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import CHAT, COMPLETIONS, client_of

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
SHOWS = "{{ messages | tojson }}{{ tools | tojson if tools }}{{ enable_thinking }}<think></think>"
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400}


def events_of(client: TestClient, path: str, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    answer = client.post(path, json={"stream": True, **fields})
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


def prompt_of(slot: ScriptedSlot) -> str:
    return slot.target.spelling(slot.requests[-1].prompt).decode()


TOOLS = {
    RESPONSES: [{"type": "function", "name": "read", "description": "d", "parameters": SCHEMA}],
    MESSAGES: [{"name": "read", "description": "d", "input_schema": SCHEMA}],
}
ASKED: dict[str, dict[str, Any]] = {RESPONSES: {"input": "a"}, MESSAGES: SAID}


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_fields_of_all_apis_and_of_others(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    more = {"duo": {"schedule": "off"}, "speculative.n_max": 2, "cache_prompt": False, "id_slot": 3}
    answer = client.post(path, json=ASKED[path] | more)
    assert answer.status_code == 200
    assert "tokens_by_schedule" in answer.json()["duo"]
    asked = slot.requests[-1]
    assert (asked.drafting.schedule, asked.drafting.n_max, asked.reuses, asked.slot) == ("off", 2, False, 3)
    assert client.post(path, json=ASKED[path] | {"id_slot": None}).status_code == 200
    assert_error(client.post(path, json=ASKED[path] | {"id_slot": 9}), 400) if path == RESPONSES else None
    told = client.post(path, json=ASKED[path] | {"min_p": 0.1}).headers[WARNING_HEADER]
    assert told == 'unknown field "min_p": it is not one of this API'


def test_what_a_limit_has_cut_is_incomplete(client: TestClient) -> None:
    answer = client.post(RESPONSES, json={"input": "a", "max_output_tokens": 2}).json()
    assert (answer["status"], answer["output"][-1]["status"]) == ("incomplete", "incomplete")


def written(response: Response) -> list[tuple[str, str]]:
    """The items of an output, as their type and what they say."""
    found = []
    for item in response.output:
        match item.type:
            case "message":
                found.append(("text", item.content[0].text))  # type: ignore[union-attr]
            case "reasoning":
                found.append(("thinking", item.content[0].text))  # type: ignore[index]
            case "function_call":
                found.append((item.name, item.arguments))
    return found


def blocks(message: Message) -> list[tuple[str, str]]:
    found = []
    for block in message.content:
        match block.type:
            case "text":
                found.append(("text", block.text))
            case "thinking":
                found.append(("thinking", block.thinking))
            case "tool_use":
                found.append((block.name, json.dumps(block.input)))
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_thoughts_text_and_calls(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None], path: str, stream: bool
) -> None:
    use(HERMES + "{# <think> #}")
    slot.text = f"{THOUGHT}I read it.\n{CALL}"
    asked = ASKED[path] | {"tools": TOOLS[path]}
    expected = [("thinking", "Let me see."), ("text", "I read it."), ("read", '{"path": "a.txt"}')]
    if path == RESPONSES:
        if stream:
            events = events_of(client, path, **asked)
            for _, data in events:
                TypeAdapter(ResponseStreamEvent).validate_python(data)
            assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
            assert [name.removeprefix("response.") for name, _ in events[:2]] == ["created", "in_progress"]
            texts = [data["delta"] for name, data in events if name == "response.output_text.delta"]
            assert "".join(texts) == "I read it."
            response = Response.model_validate(events[-1][1]["response"])
        else:
            response = Response.model_validate(client.post(path, json=asked).json())
        assert written(response) == expected
        assert response.status == "completed"
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens == len("Let me see.")
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    else:
        if stream:
            events = events_of(client, path, **asked)
            for _, data in events:
                TypeAdapter(RawMessageStreamEvent).validate_python(data) if data["type"] != "ping" else None
            message = accumulated([data for _, data in events])
        else:
            message = Message.model_validate(client.post(path, json=asked).json())
        assert blocks(message) == expected
        assert message.stop_reason == "tool_use"
        assert message.usage.output_tokens > 20
        assert message.usage.output_tokens_details is not None
        assert message.usage.output_tokens_details.thinking_tokens == len("Let me see.")


def accumulated(events: list[dict[str, Any]]) -> Message:
    """The message of a stream, whose events are in order."""
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message, is_open = dict(events[0]["message"]), False
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"], "json": ""})
                is_open = True
            case "content_block_delta":
                assert is_open
                block, delta = message["content"][event["index"]], event["delta"]
                kind = delta["type"].removesuffix("_delta")
                block["json" if kind == "input_json" else kind] += delta[
                    "partial_json" if kind == "input_json" else kind
                ]
            case "content_block_stop":
                block, is_open = message["content"][event["index"]], False
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["json"])
    assert not is_open
    return Message.model_validate(message | events[-2]["delta"] | {"usage": events[-2]["usage"]})


def test_items_of_a_response_become_messages(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None]
) -> None:
    use(SHOWS)
    items = [
        {"role": "developer", "content": "b"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "c"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "d"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "e", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "read", "arguments": '{"path": "f"}'},
        {"type": "function_call", "call_id": "2", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "g"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "h"}]},
    ]
    calls = [
        {"id": n, "type": "function", "function": {"name": "read", "arguments": arguments}}
        for n, arguments in (("1", {"path": "f"}), ("2", {}))
    ]
    answer = client.post(RESPONSES, json={"instructions": "a", "input": items, "reasoning": {"effort": "none"}})
    assert answer.status_code == 200, answer.text
    shown, end = json.JSONDecoder().raw_decode(prompt_of(slot))
    assert shown == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "e", "reasoning_content": "d", "tool_calls": calls},
        {"role": "tool", "content": "g", "tool_call_id": "1"},
        {"role": "tool", "content": "h", "tool_call_id": "2"},
    ]
    assert prompt_of(slot)[end:].startswith("False")


def test_blocks_of_messages_become_messages(client: TestClient, slot: ScriptedSlot, use: Callable[[str], None]) -> None:
    use(SHOWS)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "c", "signature": "x"},
                {"type": "text", "text": "d"},
                {"type": "tool_use", "id": "1", "name": "read", "input": {"path": "e"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "f"}]},
                {"type": "text", "text": "g"},
            ],
        },
    ]
    system = [{"type": "text", "text": "a"}, {"type": "text", "text": "a2"}]
    fields = {"messages": messages, "system": system, "thinking": {"type": "disabled"}, "model": "claude-opus-5"}
    answer = client.post(MESSAGES, json=SAID | fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "claude-opus-5"
    assert "x-duo-warning" not in answer.headers
    shown, end = json.JSONDecoder().raw_decode(prompt_of(slot))
    calls = [{"id": "1", "type": "function", "function": {"name": "read", "arguments": {"path": "e"}}}]
    assert shown == [
        {"role": "system", "content": "a\na2"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "d", "reasoning_content": "c", "tool_calls": calls},
        {"role": "tool", "content": "f", "tool_call_id": "1"},
        {"role": "user", "content": "g"},
    ]
    assert prompt_of(slot)[end:].startswith("False")
    counted = client.post(COUNT, json=SAID | fields).json()
    assert counted == {"input_tokens": len(slot.requests[-1].prompt)}


def test_why_a_text_has_ended(client: TestClient) -> None:
    cut = client.post(RESPONSES, json={"input": "a", "max_output_tokens": 5}).json()
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["usage"]["output_tokens"] == 5
    cut = client.post(MESSAGES, json=SAID | {"max_tokens": 5}).json()
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("max_tokens", None)
    stopped = client.post(MESSAGES, json=SAID | {"stop_sequences": ["zzz", " of"]}).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " of")
    assert stopped["content"] == [{"type": "text", "text": TEXT.partition(" of")[0]}]
    again = client.post(MESSAGES, json=SAID).json()
    assert again["usage"]["cache_read_input_tokens"] > 0
    assert again["stop_reason"] == "end_turn"


IMAGE = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.34c; cc_entrypoint=cli; cch=eb6c6;"
LEFT_OUT = "left out, as this model reads only text]"


@pytest.mark.parametrize("begin", ["", "\n", " ", "\n\n"])
def test_the_line_for_bills_is_no_part_of_the_prompt(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None], begin: str
) -> None:
    """As one block or joined with the next: proxies do that, also when they ask another API."""
    use(SHOWS)
    system, said = f"{BILLING}{begin}Be brief.", [{"role": "user", "content": f"What is {BILLING}"}]
    blocks = [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}]
    for path, fields in (
        (MESSAGES, {"messages": said, "max_tokens": 5, "system": system}),
        (MESSAGES, {"messages": said, "max_tokens": 5, "system": blocks}),
        (MESSAGES, {"messages": [{"role": "system", "content": blocks}, *said], "max_tokens": 5}),
        (COUNT, {"messages": said, "system": blocks}),
        (RESPONSES, {"input": said, "instructions": system}),
        (CHAT, {"messages": [{"role": "system", "content": system}, *said]}),
        (CHAT, {"messages": [{"role": "developer", "content": blocks}, *said]}),
    ):
        answer = client.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        shown, _ = json.JSONDecoder().raw_decode(prompt_of(slot))
        assert shown == [{"role": "system", "content": "Be brief."}, *said]
        if path == COUNT:
            assert answer.json()["input_tokens"] == len(slot.requests[-1].prompt)
    only = {"messages": said, "max_tokens": 5, "system": BILLING}
    assert client.post(MESSAGES, json=only).status_code == 200
    assert json.JSONDecoder().raw_decode(prompt_of(slot))[0] == said


def test_what_is_not_text_in_messages_of_tools_and_of_the_assistant(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None]
) -> None:
    """They are in each later request, so that to refuse them would end the chat."""
    use(SHOWS)
    source = {"type": "base64", "media_type": "image/png", "data": "iVBOR"}
    image, pdf = {"type": "image", "source": source}, {"type": "document", "source": source, "title": "t"}
    result = {"type": "tool_result", "tool_use_id": "1", "is_error": True, "cache_control": {"type": "ephemeral"}}
    of_server = {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": {"type": "web_search_tool_result_error"},
    }
    call = {"type": "tool_use", "id": "1", "name": "read", "input": {}, "caller": {"type": "direct"}}
    for content, expected in (
        ([image], f"[image: {LEFT_OUT}"),
        ([{"type": "text", "text": "a"}, image, pdf], f"a\n[image: {LEFT_OUT}\n[document: {LEFT_OUT}"),
        ([{"type": "tool_reference", "tool_name": "e"}], f"[tool_reference: {LEFT_OUT}"),
        (None, ""),
    ):
        assistant = [
            {"type": "thinking", "thinking": "t", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            of_server,
            call,
        ]
        messages = [
            *SAID["messages"],
            {"role": "assistant", "content": assistant},
            {"role": "user", "content": [result | ({"content": content} if content is not None else {}), image]},
        ]
        more = {
            "betas": ["a"], "container": "b", "mcp_servers": [], "context_management": {"edits": []},
            "inference_geo": "c", "cache_control": {"type": "ephemeral"}, "service_tier": "auto",
            "metadata": {"user_id": "d"},
        }  # fmt: skip
        answer = client.post(MESSAGES, json=SAID | {"messages": messages} | more)
        assert answer.status_code == 200, answer.text
        assert re.fullmatch("without effect here: [a-z_, ]+", answer.headers[WARNING_HEADER])
        shown, _ = json.JSONDecoder().raw_decode(prompt_of(slot))
        assert [message["role"] for message in shown] == ["user", "assistant", "tool", "user"]
        assert shown[1]["content"] == ""
        assert shown[1]["reasoning_content"] == "t"
        assert [message["content"] for message in shown[2:]] == [expected, f"[image: {LEFT_OUT}"]


def test_what_is_not_text_in_other_apis(client: TestClient, slot: ScriptedSlot, use: Callable[[str], None]) -> None:
    use(SHOWS)
    url = {"url": "data:image/png;base64,iVBOR"}
    function = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    for parts in (
        [{"type": "image_url", "image_url": url}],
        [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
        [{"type": "file", "file": {"file_id": "1"}}],
    ):
        messages = [
            *SAID["messages"],
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": [function]},
            {"role": "tool", "tool_call_id": "1", "content": parts},
            {"role": "user", "content": [{"type": "text", "text": "from the tool: "}, *parts]},
        ]
        answer = client.post(CHAT, json={"messages": messages})
        assert answer.status_code == 200, answer.text
        shown, _ = json.JSONDecoder().raw_decode(prompt_of(slot))
        note = f"[{parts[0]['type']}: {LEFT_OUT}"
        assert [message["content"] for message in shown[1:]] == ["", note, f"from the tool: {note}"]
        later = [*messages[:3], {"role": "assistant", "content": "It is red."}, messages[3]]
        assert_error(client.post(CHAT, json={"messages": later}), 400, "not supported: this model reads only text")

    called = {"type": "function_call", "call_id": "1", "name": "read", "arguments": "{}"}
    read = {"type": "input_image", "image_url": url["url"]}
    items = [
        {"role": "user", "content": "a"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        called,
        {"type": "function_call_output", "call_id": "1", "output": [read, {"type": "input_file", "file_data": "x"}]},
        {"role": "user", "content": [read]},
    ]
    answer = client.post(RESPONSES, json={"input": items})
    assert answer.status_code == 200, answer.text
    assert "input of type web_search_call, input of type mcp_list_tools" in answer.headers[WARNING_HEADER]
    shown, _ = json.JSONDecoder().raw_decode(prompt_of(slot))
    notes = [f"[input_image: {LEFT_OUT}[input_file: {LEFT_OUT}", f"[input_image: {LEFT_OUT}"]
    assert [message["content"] for message in shown[2:]] == notes


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id is not supported"),
        (RESPONSES, {"input": "a", "conversation": {"id": "1"}}, "conversation is not supported"),
        (RESPONSES, {"input": "a", "background": True}, "background is not supported"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "1"}]}, "an input of type 'item_reference'"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input_image'"),
        (RESPONSES, {"input": []}, "messages must not be empty"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f", "arguments": "["}]}, "not a JSON object"),
        (RESPONSES, {"input": 5}, "invalid request"),
        (RESPONSES, {"input": "a", "tools": [{"type": "function", "name": "bad name!"}]}, "tools: "),
        (RESPONSES, {"input": "a", "tools": [{"description": "a"}]}, "tools: the name of a tool"),
        (RESPONSES, {"input": "a", "tool_choice": {"type": "allowed_tools"}}, "tool_choice of type 'allowed_tools'"),
        (RESPONSES, {"input": 80 * [{"role": "system", "content": "a"}]}, "more than 64 system messages"),
        (MESSAGES, SAID | {"tools": [{"name": "é"}]}, "tools: "),
        (MESSAGES, SAID | {"messages": IMAGE}, "content of type 'image' is not supported"),
        (MESSAGES, SAID | {"messages": []}, "messages must not be empty"),
        (MESSAGES, SAID | {"messages": 5}, "invalid request"),
        (COUNT, SAID | {"messages": IMAGE}, "content of type 'image' is not supported"),
    ],
)
def test_what_is_refused(client: TestClient, path: str, fields: dict[str, Any], said: str) -> None:
    answer = client.post(path, json=fields)
    assert answer.status_code == 400
    body = answer.json()
    assert said in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"
    assert (body.get("type") == "error") == (path != RESPONSES)


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_failure_in_a_stream(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    slot.error, slot.error_at = RuntimeError("broken"), 2
    name, data = events_of(client, path, **ASKED[path])[-1]
    if path == RESPONSES:
        assert name == "response.failed"
        assert "broken" in Response.model_validate(data["response"]).error.message  # type: ignore[union-attr]
    else:
        assert (name, data["error"]["type"]) == ("error", "api_error")
        assert "broken" in data["error"]["message"]


def test_tools_of_other_types_are_ignored_with_a_warning(client: TestClient, use: Callable[[str], None]) -> None:
    use(HERMES)
    for path, tool in ((RESPONSES, {"type": "web_search"}), (MESSAGES, {"type": "bash_20250124", "name": "bash"})):
        answer = client.post(path, json=ASKED[path] | {"tools": [*TOOLS[path], tool]})
        assert answer.status_code == 200, answer.text
        assert f"tool of type {tool['type']}" in answer.headers["x-duo-warning"]


def test_a_key_of_either_header(make_lead: Callable[..., Lead]) -> None:
    client = client_of(make_lead(api_keys=["secret"]))
    assert client.post(MESSAGES, json=SAID).status_code == 401
    assert client.post(MESSAGES, json=SAID, headers={"x-api-key": "secret"}).status_code == 200
    assert client.post(RESPONSES, json={"input": "a"}, headers={"Authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_tool_without_a_type_is_a_function(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None], path: str
) -> None:
    use(HERMES)
    tools = [{name: value for name, value in tool.items() if name != "type"} for tool in TOOLS[path]]
    answer = client.post(path, json=ASKED[path] | {"tools": tools})
    assert answer.status_code == 200, answer.text
    assert WARNING_HEADER not in answer.headers
    assert '"name": "read"' in prompt_of(slot)


@pytest.mark.parametrize("fields", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_response(
    client: TestClient, slot: ScriptedSlot, use: Callable[[str], None], fields: dict[str, Any], stream: bool
) -> None:
    """Those of the message, not those of the thought or of a call."""
    use(HERMES + "{# <think> #}")
    slot.text = f"{THOUGHT}I réad it.\n{CALL}"
    asked = {"input": "a", "tools": TOOLS[RESPONSES], **fields}
    streamed = []
    if stream:
        events = events_of(client, RESPONSES, **asked)
        for name, data in events:
            parsed: Any = TypeAdapter(ResponseStreamEvent).validate_python(data)
            if name == "response.output_text.delta":
                assert bytes(b for one in data["logprobs"] for b in one["bytes"]).decode() == parsed.delta
                streamed += data["logprobs"]
        done = next(data for name, data in events if name == "response.output_text.done")
        assert done["logprobs"] == streamed
        response = Response.model_validate(events[-1][1]["response"])
    else:
        response = Response.model_validate(client.post(RESPONSES, json=asked).json())
    assert response.top_logprobs == fields.get("top_logprobs", 0)
    (message,) = (item for item in response.output if item.type == "message")
    found: Any = message.content[0]
    assert (
        "".join(bytes(one.bytes).decode("latin-1") for one in found.logprobs).encode("latin-1").decode() == "I réad it."
    )
    assert {len(one.top_logprobs) for one in found.logprobs} == {response.top_logprobs}
    assert client.post(RESPONSES, json={"input": "a"}).json()["output"][1]["content"][0]["logprobs"] == []
    assert_error(client.post(RESPONSES, json={"input": "a", "top_logprobs": 1000}), 400, "top_logprobs")


def test_a_prompt_that_is_too_long_has_a_code_in_each_api(client: TestClient, slot: ScriptedSlot) -> None:
    slot.n_ctx = 60
    long = "a" * 60
    for path, fields in (
        (CHAT, {"messages": [{"role": "user", "content": long}]}),
        (COMPLETIONS, {"prompt": [9] * 61}),
        (RESPONSES, {"input": long}),
        (MESSAGES, SAID | {"messages": [{"role": "user", "content": long}]}),
        (COUNT, {"messages": [{"role": "user", "content": long}]}),
    ):
        for stream in (False, True):
            answer = client.post(path, json=fields | ({"stream": stream} if path != COUNT else {}))
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
            assert error["message"].startswith("prompt is too long: ")


def test_a_schema(client: TestClient, slot: ScriptedSlot) -> None:
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    answer = client.post(RESPONSES, json={"input": "a", "text": {"format": form}})
    assert answer.status_code == 200, answer.text
    assert "path" in (slot.requests[-1].config.grammar or "")
    Response.model_validate(answer.json())

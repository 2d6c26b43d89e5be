"""Requests that client programs have sent, each answered as its client understands it: see tests/clients/README.md."""

import json
import re
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from starlette.testclient import TestClient

from duo.llama.chat_template import ChatTemplate
from duo.server.requests import WARNING_HEADER
from tests.chat_templates import HERMES
from tests.command import ROOT
from tests.scripted import ScriptedSlot
from tests.unit.server.conftest import CHAT

FOLDER = ROOT / "tests" / "clients"
CLIENTS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "recorded").glob("*.json"))]
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
APIS = {CHAT: "C", MESSAGES: "M", RESPONSES: "R"}
KINDS = ("tools", "image", "document", "constraints", "prefill", "text")
REQUESTS = [
    pytest.param(one, id=f"{client['client']}-{n}-{one['kind']}")
    for client in CLIENTS
    for n, one in enumerate(client["requests"])
]
NAMED = [pytest.param(client, id=client["client"]) for client in CLIENTS]
FRUIT = {"name": "pear", "ripe": True}
LEFT_OUT = "left out, as this model reads only text"

Found = tuple[str, list[tuple[str, Any]]]  # the text of an answer, and its calls


@pytest.fixture(autouse=True)
def model(slot: ScriptedSlot) -> None:
    """It has a large context, and tools."""
    slot.n_ctx = 2**20
    slot.target.chat_template = slot.target.tool_template = ChatTemplate(HERMES)


def read(client: TestClient, path: str, body: dict[str, Any]) -> Found:
    """An answer, as the API's own package reads it."""
    if path == MESSAGES:
        return read_messages(client, body)
    sdk: Any = openai.OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=client)
    if path == RESPONSES:
        events = openai.Stream[ResponseStreamEvent]
        found = sdk.post("/responses", body=body, cast_to=Response, stream=bool(body["stream"]), stream_cls=events)
        response = [*found][-1].response if body["stream"] else found
        assert response.status == "completed"
        calls = [item for item in response.output if item.type == "function_call"]
        return response.output_text, [(call.name, json.loads(call.arguments)) for call in calls]
    chunks = openai.Stream[ChatCompletionChunk]
    found = sdk.post(path[3:], body=body, cast_to=ChatCompletion, stream=bool(body["stream"]), stream_cls=chunks)
    choices = [choice for chunk in found for choice in chunk.choices] if body["stream"] else found.choices
    parts = [choice.delta if body["stream"] else choice.message for choice in choices]
    functions = [call.function for part in parts for call in part.tool_calls or ()]
    assert choices[-1].finish_reason == ("tool_calls" if functions else "stop")
    calls = [(function.name, json.loads(function.arguments)) for function in functions]
    return "".join(part.content or "" for part in parts), calls


def read_messages(client: TestClient, body: dict[str, Any]) -> Found:
    sdk: Any = anthropic.Anthropic(base_url="http://localhost", api_key="none", max_retries=0, http_client=client)
    if not body["stream"]:
        blocks = sdk.post(MESSAGES, body=body, cast_to=Message).content
        texts = "".join(block.text for block in blocks if block.type == "text")
        return texts, [(block.name, block.input) for block in blocks if block.type == "tool_use"]
    stream = anthropic.Stream[RawMessageStreamEvent]
    events = [*sdk.post(MESSAGES, body=body, cast_to=Message, stream=True, stream_cls=stream)]
    assert events[-1].type == "message_stop"
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    begun = [event.content_block for event in events if event.type == "content_block_start"]
    names = [block.name for block in begun if block.type == "tool_use"]
    inputs = [json.loads(delta.partial_json) for delta in deltas if delta.type == "input_json_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta"), [*zip(names, inputs, strict=True)]


def functions_of(body: dict[str, Any]) -> list[str]:
    tools = [tool for tool in body.get("tools", ()) if tool.get("type", "function") in ("function", "custom")]
    return [tool.get("name") or tool["function"]["name"] for tool in tools]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("one", REQUESTS)
def test_a_request_of_a_client(client: TestClient, slot: ScriptedSlot, one: dict[str, Any], stream: bool) -> None:
    kind, path, body = one["kind"], one["path"], one["body"] | {"stream": stream}
    names, choice = functions_of(body), body.get("tool_choice", "auto")
    arguments = FRUIT if kind == "constraints" else {"path": "a.txt"}
    calls = [(names[0], arguments)] if kind == "tools" or (names and choice != "auto") else []
    written = [f"<tool_call>\n{json.dumps({'name': n, 'arguments': given})}\n</tool_call>" for n, given in calls]
    text = "" if calls else json.dumps(FRUIT) if kind == "constraints" else "Done."
    slot.text = text + "".join(written)
    if kind == "prefill":
        slot.text = text = "ar."
    if "thinking" in body:
        slot.text = f"</think>\n{slot.text}"
    assert read(client, path, body) == (text, calls)
    asked = slot.requests[-1]
    prompt = slot.target.spelling(asked.prompt).decode()
    assert "billing-header" not in prompt
    assert (LEFT_OUT in prompt) == (kind in ("image", "document"))
    assert "base64,iVBOR" not in prompt
    assert ("the image" in prompt) == ("the image" in json.dumps(body)), "the text beside it"
    if kind == "constraints":
        assert "ripe" in (asked.config.grammar or "") + (prompt if "json_object" in json.dumps(body) else "")
    if kind == "prefill":
        assert prompt.endswith("A pe"), "the answer that it begins is continued"
    assert "unknown field" not in client.post(path, json=body).headers.get(WARNING_HEADER, "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("of", NAMED)
def test_a_client_knows_that_the_prompt_is_too_long(
    client: TestClient, slot: ScriptedSlot, of: dict[str, Any], stream: bool
) -> None:
    """By the expressions of its source, if it has any. All show the message."""
    for n_ctx in (40, 20_000):  # below what is tokenised, and above
        slot.n_ctx = n_ctx
        slot.target.longest_token = 1 if n_ctx == 40 else 256
        for one in of["requests"]:
            body = one["body"] | {"stream": stream}
            if n_ctx == 20_000:  # the system prompts of the agents are shortened here
                instructions = "instructions" if one["path"] == RESPONSES else "system"
                long = {"messages": [{"role": "user", "content": "a " * 20_000}], "input": "a " * 20_000}
                body |= {name: long[name] for name in long.keys() & body.keys()} | {instructions: "a"}
            answer = client.post(one["path"], json=body)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert re.match(rf"prompt is too long: .*> {n_ctx} maximum", error["message"])
            for pattern in of["overflow"]:
                found = re.search(pattern, answer.text, re.I)
                assert found, pattern
                if found.groups():
                    assert int(found[1]) > int(found[2]) == n_ctx


def test_the_list_of_clients() -> None:
    """README.md has a row for each, with its kinds of requests."""
    rows = []
    for client in CLIENTS:
        found = [
            f"{kind} {''.join(sorted({APIS[one['path']] for one in client['requests'] if one['kind'] == kind}))}"
            for kind in KINDS
            if any(one["kind"] == kind for one in client["requests"])
        ]
        known = "yes" if client["overflow"] else "shown"
        rows.append(f"| {client['client']} | {client['version']} | {client['source']} | {known} | {', '.join(found)} |")
    missing = [row for row in rows if row not in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()]
    assert not missing, "\n".join(missing)

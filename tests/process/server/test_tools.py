"""Tools with a real model: calls that a grammar constrains, and what becomes of their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.chat_templates import HERMES
from tests.gguf_files import with_chat_template
from tests.serving import PATIENCE_S, LeadProcess, assert_error

CITIES = ["Oslo", "Rome", "Lima"]
PARAMETERS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "array", "items": {"type": "boolean"}}},
        "required": ["city"],
        "$defs": {"City": {"enum": CITIES}},
    },
    "roll": {
        "type": "object",
        "properties": {"label": {"type": "string", "maxLength": 8}, "is_fair": {"type": "boolean"}},
        "required": ["label", "is_fair"],
    },
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": f"Tool: {name}", "parameters": parameters}}
    for name, parameters in PARAMETERS.items()
]
SHORT: Any = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather"}}


def user(content: str) -> Any:
    return {"role": "user", "content": content}


def said(name: str, **arguments: Any) -> Any:
    """A message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


def check(name: str, arguments: str) -> None:
    """Whether the arguments are what the tool takes."""
    found = json.loads(arguments)
    if name == "get_weather":
        assert found["city"] in CITIES
        assert all(isinstance(day, bool) for day in found.get("days", []))
    else:
        assert (name, set(found)) == ("roll", {"label", "is_fair"})
        assert (type(found["label"]), type(found["is_fair"])) == (str, bool)
        assert len(found["label"]) <= 8


@pytest.fixture(scope="module")
def hermes(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadProcess]:
    """A lead whose model has tools, in the format of Hermes."""
    target = with_chat_template(demo_pair[1], tmp_path_factory.mktemp("models") / "hermes.gguf", HERMES)
    with LeadProcess(target, "-c", "2048", "--exact") as lead:
        yield lead
    target.unlink()


@pytest.fixture(scope="module")
def client(hermes: LeadProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hermes.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


def answer(client: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": "", "messages": messages, "tools": TOOLS, "max_tokens": 256} | SHORT | more
    return client.chat.completions.create(**asked).choices[0]


def test_a_named_call(client: openai.OpenAI) -> None:
    for name in PARAMETERS:
        choice = answer(client, user("Hi"), tool_choice={"type": "function", "function": {"name": name}})
        (call,) = choice.message.tool_calls
        assert call.function.name == name
        check(name, call.function.arguments)


def test_a_stream_has_the_same_call(client: openai.OpenAI) -> None:
    message = answer(client, user("The weather in Lima?"), tool_choice=WEATHER).message
    asked: dict[str, Any] = {"model": "", "messages": [user("The weather in Lima?")], "max_tokens": 256, **SHORT}
    name, arguments, ids, finishes = "", "", set(), []
    for chunk in client.chat.completions.create(**asked, tools=TOOLS, tool_choice=WEATHER, stream=True):
        (choice,) = chunk.choices
        assert not choice.delta.content
        finishes.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            ids |= {call.id} - {None}
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, arguments) == ("get_weather", message.tool_calls[0].function.arguments)
    assert len(ids) == 1
    assert finishes == [None] * (len(finishes) - 1) + ["tool_calls"]


def test_a_model_that_may_call_does_as_it_did_before(client: openai.OpenAI) -> None:
    history = [user("The weather in Rome?"), said("get_weather", city="Rome")] * 3
    choice = answer(client, *history, history[0], extra_body={})
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        check(call.function.name, call.function.arguments)
    call = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)["city"]) == ("get_weather", "Rome")


def test_the_result_of_a_call(client: openai.OpenAI, hermes: LeadProcess) -> None:
    question = user("The weather in Oslo?")
    message = answer(client, question, tool_choice=WEATHER).message
    (call,) = message.tool_calls
    told = {"role": "tool", "tool_call_id": call.id, "content": "It rains frogs."}
    messages = [question, message.model_dump(exclude_none=True), told]
    prompt = hermes.post("/apply-template", messages=messages, tools=TOOLS).json()["prompt"]
    arguments = json.dumps(json.loads(call.function.arguments), ensure_ascii=False)
    assert prompt.endswith(
        f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nIt rains frogs.\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer(client, *messages, tool_choice="none").message.content


def test_a_model_without_tools(lead: LeadProcess) -> None:
    asked = {"messages": [user("Hi")], "tools": TOOLS}
    answer = httpx.post(f"{lead.url}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
    assert_error(answer, 400, "this model's chat template has no tools")
    assert lead.post("/apply-template", messages=[user("Hi")]).json()["prompt"].endswith("<|im_start|>assistant\n")

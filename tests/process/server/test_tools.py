"""Tools with a real model: calls that a grammar constrains, and what becomes of their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.chat_templates import HERMES
from tests.gguf_files import with_chat_template
from tests.serving import PATIENCE_S, LeadProcess

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


def test_a_model_that_may_call_does_as_it_did_before(client: openai.OpenAI) -> None:
    history = [user("The weather in Rome?"), said("get_weather", city="Rome")] * 3
    choice = answer(client, *history, history[0], extra_body={})
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        check(call.function.name, call.function.arguments)
    call = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)["city"]) == ("get_weather", "Rome")

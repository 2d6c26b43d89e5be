"""A real client with a lead: the arguments are its name and the lead's URL. Each has an own copy of some packages."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel

QUESTION = "What is the capital of France?"
WEATHER = "How is the weather in Paris?"
City = Literal["Paris", "Rome"]


class Fruit(BaseModel):
    """A fruit."""

    name: Literal["apple", "pear"]
    ripe: bool


class Weather(BaseModel):
    """The weather in a city"""

    city: City
    days: int


def openai(url: str) -> None:
    """Logprobs, tools and a parsed answer."""
    sdk = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    chats: Any = sdk.chat.completions  # not typed: mypy cannot choose an overload for fields in a dict
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": Weather.model_json_schema()}}
    said: list[Any] = [{"role": "user", "content": WEATHER}]
    short = {"model": "default", "temperature": 0, "max_tokens": 96}

    (whole,) = chats.create(messages=said, logprobs=True, top_logprobs=3, **short).choices
    found = whole.logprobs.content
    assert b"".join(bytes(token.bytes or ()) for token in found).decode() == whole.message.content
    for token in found:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0, "the most likely one at temperature 0"
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1 + 1e-6

    asked = short | {"tools": [weather], "parallel_tool_calls": False}
    for choice in ({"type": "function", "function": {"name": "get_weather"}}, "required"):
        (called,) = chats.create(messages=said, tool_choice=choice, **asked).choices
        (call,) = called.message.tool_calls
        assert called.finish_reason == "tool_calls"
        Weather.model_validate_json(call.function.arguments)
    with chats.stream(messages=said, tool_choice="required", **asked) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    answered = [*said, called.message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    (last,) = chats.create(messages=answered, tool_choice="none", **asked).choices
    assert last.message.content
    assert not last.message.tool_calls
    rome = {"name": "get_weather", "arguments": json.dumps({"city": "Rome", "days": 1})}
    past = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": rome}]}
    (again,) = chats.create(messages=[*[*said, past] * 3, *said], **asked).choices
    assert again.finish_reason == "tool_calls", "a model that may call does as it did before"

    fields = {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "low"}
    fruit = [{"role": "user", "content": "Name a fruit."}]
    parsed = chats.parse(
        model="default", messages=fruit, response_format=Fruit, max_completion_tokens=64, seed=1, **fields
    )
    assert isinstance(parsed.choices[0].message.parsed, Fruit)


def langchain(url: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langchain_openai import OpenAI as Completions

    def weather(city: City, days: int) -> str:
        """The weather in a city."""
        return f"Sunny in {city} for {days} days."

    settings = {"base_url": f"{url}/v1", "api_key": "none", "model": "default", "temperature": 0, "max_retries": 0}
    llm, get_weather = ChatOpenAI(**settings, max_tokens=96, stream_usage=True), tool("get_weather")(weather)
    whole = llm.invoke(QUESTION)
    assert "Paris" in whole.content
    assert whole.response_metadata["finish_reason"] == "stop"
    chunks = list(llm.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["total_tokens"] for usage in usages] == [whole.usage_metadata["total_tokens"]]
    assert asyncio.run(llm.ainvoke(QUESTION)).content == whole.content
    assert [answer.content for answer in llm.batch([QUESTION] * 3)] == [whole.content] * 3
    assert Completions(**settings, max_tokens=4).invoke("The capital of France is").strip().startswith("Paris")
    for method in ("json_schema", "function_calling"):
        assert isinstance(llm.with_structured_output(Fruit, method=method).invoke("Name a fruit."), Fruit)
    asked = HumanMessage(WEATHER)
    for choice in ("any", "get_weather"):
        with_tools = llm.bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
        called = with_tools.invoke([asked])
        results = [get_weather.invoke(call) for call in called.tool_calls]
        assert [type(result) for result in results] == [ToolMessage]
    first, *rest = with_tools.stream([asked])
    assert sum(rest, first).tool_calls[0]["args"] == called.tool_calls[0]["args"]
    assert llm.bind_tools([get_weather], tool_choice="none").invoke([asked, called, *results]).content


def litellm(url: str) -> None:
    """Without tools, for which it needs more packages."""
    from litellm import completion, responses

    messages = [{"role": "user", "content": QUESTION}]
    common = {"api_base": f"{url}/v1", "api_key": "none", "messages": messages, "max_tokens": 96, "temperature": 0}
    for model in ("openai/default", "hosted_vllm/default"):
        asked: dict[str, Any] = common | {"model": model}
        whole = completion(**asked).choices[0]
        assert "Paris" in whole.message.content
        assert whole.finish_reason == "stop"
        *chunks, last = completion(**asked, stream=True, stream_options={"include_usage": True})
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
        assert last.usage.completion_tokens > 0
        formed = completion(**asked, response_format=Fruit, seed=1, top_p=0.9)
        Fruit.model_validate_json(formed.choices[0].message.content)
    chosen = completion(**asked, guided_choice=["apple", "pear"]).choices[0]  # vLLM's
    assert chosen.message.content in ("apple", "pear")
    common = {"api_key": "none", "temperature": 0}
    answered = responses(model="openai/default", api_base=f"{url}/v1", input=QUESTION, max_output_tokens=96, **common)
    assert answered.output[0].content[0].text == whole.message.content
    of_claude = {"model": "anthropic/claude-3-5-haiku-latest", "api_base": url, "messages": messages, "max_tokens": 96}
    assert completion(**of_claude, **common).choices[0].message.content == whole.message.content
    formed = completion(**of_claude | {"model": "anthropic/claude-sonnet-4-5"}, **common, response_format=Fruit)
    Fruit.model_validate_json(formed.choices[0].message.content)
    streamed = completion(**of_claude, **common, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole.message.content


def llamacpp(url: str) -> None:
    """A client of llama-server's own API."""
    from urllib.parse import urlsplit

    from llamacpp_client.address import LlamaCppServerAddress
    from llamacpp_client.client import LlamaCppClient

    place = urlsplit(url)
    client = LlamaCppClient([LlamaCppServerAddress(place.hostname, place.port)])
    asked = {"prompt": "1, 2, 3, 4,", "temperature": 0, "n_predict": 8, "repeat_penalty": 1.0, "stop": [" 6"]}
    whole = client.new_completion(**asked)
    assert (whole.content, whole.stop_type, whole.truncated) == (" 5,", "word", False)
    assert whole.tokens_cached >= whole.tokens_evaluated
    *chunks, last = client.new_stream_completion(**asked)
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert (last.stop, last.stop_type, last.content) == (True, "word", "")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])

"""langchain-openai with a lead, whose URL is the argument."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

QUESTION = "What is the capital of France?"


class Fruit(BaseModel):
    """A fruit."""

    name: Literal["apple", "pear"]
    ripe: bool


def weather(city: Literal["Paris", "Rome"], days: int) -> str:
    """The weather in a city."""
    return f"Sunny in {city} for {days} days."


get_weather = tool("get_weather")(weather)


def main(url: str) -> None:
    settings = {"base_url": f"{url}/v1", "api_key": "none", "model": "default", "temperature": 0, "max_retries": 0}
    llm = ChatOpenAI(**settings, max_tokens=96, stream_usage=True)
    whole = llm.invoke(QUESTION)
    assert "Paris" in whole.content
    assert whole.response_metadata["finish_reason"] == "stop"
    chunks = list(llm.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["total_tokens"] for usage in usages] == [whole.usage_metadata["total_tokens"]]
    assert asyncio.run(llm.ainvoke(QUESTION)).content == whole.content
    assert [answer.content for answer in llm.batch([QUESTION] * 3)] == [whole.content] * 3
    assert OpenAI(**settings, max_tokens=4).invoke("The capital of France is").strip().startswith("Paris")
    for method in ("json_schema", "function_calling"):
        assert isinstance(llm.with_structured_output(Fruit, method=method).invoke("Name a fruit."), Fruit)
    told = llm.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in told) == whole.content
    asked = HumanMessage("How is the weather in Paris?")
    for choice in ("any", "get_weather"):
        with_tools = llm.bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
        called = with_tools.invoke([asked])
        results = [get_weather.invoke(call) for call in called.tool_calls]
        assert results
        assert all(isinstance(result, ToolMessage) for result in results)
    first, *rest = with_tools.stream([asked])
    assert sum(rest, first).tool_calls[0]["args"] == called.tool_calls[0]["args"]
    assert llm.bind_tools([get_weather], tool_choice="none").invoke([asked, called, *results]).content


if __name__ == "__main__":
    main(sys.argv[1])

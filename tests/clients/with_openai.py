"""The openai SDK with a lead, whose URL is the argument: what tests/process/server/test_openai.py has not."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ASKED: Any = [{"role": "user", "content": "How is the weather in Paris?"}]


class Fruit(BaseModel):
    name: Literal["apple", "pear"]
    ripe: bool


def logprobs(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model="default", messages=ASKED, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3
    )
    found = whole.choices[0].logprobs
    assert found is not None
    assert found.content
    assert b"".join(bytes(token.bytes or ()) for token in found.content).decode() == whole.choices[0].message.content
    for token in found.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0, "the most likely one at temperature 0"
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1 + 1e-6


def tools(client: OpenAI) -> None:
    chats: Any = client.chat.completions  # not typed: mypy cannot choose an overload for fields in a dict
    asked = {"model": "default", "tools": [WEATHER], "temperature": 0, "max_tokens": 96, "parallel_tool_calls": False}
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chats.create(messages=ASKED, tool_choice=choice, **asked)
        assert answer.choices[0].finish_reason == "tool_calls"
        calls = answer.choices[0].message.tool_calls
        assert calls
        found = json.loads(calls[0].function.arguments)
        assert (found["city"] in ("Paris", "Rome"), type(found["days"])) == (True, int)
    with chats.stream(messages=ASKED, tool_choice="required", **asked) as stream:
        final = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls
    assert streamed
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
    answered = [
        *ASKED,
        answer.choices[0].message,
        *({"role": "tool", "tool_call_id": call.id, "content": "Sunny."} for call in calls),
    ]
    last = chats.create(messages=answered, tool_choice="none", **asked)
    assert last.choices[0].message.content
    assert not last.choices[0].message.tool_calls


def parsed(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="default",
        messages=[{"role": "user", "content": "Name a fruit."}],
        response_format=Fruit,
        max_completion_tokens=64,
        seed=1,
        user="me",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        reasoning_effort="low",
    )
    assert isinstance(answer.choices[0].message.parsed, Fruit)


def main(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        logprobs(client)
        tools(client)
        parsed(client)


if __name__ == "__main__":
    main(sys.argv[1])

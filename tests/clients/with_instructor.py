"""instructor with a lead, whose URL is the argument."""

from __future__ import annotations

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel


class Fruit(BaseModel):
    name: Literal["apple", "pear"]
    ripe: bool


def main(url: str) -> None:
    sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    asked = {
        "model": "default",
        "messages": [{"role": "user", "content": "Name a fruit."}],
        "response_model": Fruit,
        "max_tokens": 96,
        "temperature": 0,
        "max_retries": 0,
    }
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
        client = instructor.from_openai(sdk, mode=mode)
        fruit, answer = client.chat.completions.create_with_completion(**asked)
        assert isinstance(fruit, Fruit)
        assert answer.usage.completion_tokens > 0
    client = instructor.from_openai(sdk, mode=instructor.Mode.JSON_SCHEMA)
    *_, last = client.chat.completions.create_partial(**asked)
    assert (last.name in ("apple", "pear"), type(last.ripe)) == (True, bool)


if __name__ == "__main__":
    main(sys.argv[1])

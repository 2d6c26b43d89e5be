"""litellm with a lead, whose URL is the argument. Without tools, for which it needs more packages."""

from __future__ import annotations

import sys
from typing import Any, Literal

import litellm
from pydantic import BaseModel


class Fruit(BaseModel):
    name: Literal["apple", "pear"]
    ripe: bool


def main(url: str) -> None:
    asked: dict[str, Any] = {
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 96,
        "temperature": 0,
    }
    for model in ("openai/default", "hosted_vllm/default"):
        whole = litellm.completion(model=model, **asked).choices[0]
        assert "Paris" in whole.message.content
        assert whole.finish_reason == "stop"
        *chunks, last = litellm.completion(model=model, stream=True, stream_options={"include_usage": True}, **asked)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
        assert last.usage.completion_tokens > 0
        formed = litellm.completion(model=model, response_format=Fruit, seed=1, top_p=0.9, **asked)
        Fruit.model_validate_json(formed.choices[0].message.content)


if __name__ == "__main__":
    main(sys.argv[1])

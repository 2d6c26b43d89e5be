"""Answers: a generation as OpenAI's JSON."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from duo.engine.slot import TextRequest
from duo.engine.text import CONTEXT_FULL, LIMIT
from duo.server.logprobs import AnswerLogprobs
from duo.server.parts import PLAIN, AnswerFormat, Part, Parts, ToolCall
from duo.spec.types import Step


class Shape:
    """The JSON of one answer, of a chat or a completion."""

    def __init__(self, model: str, *, chat: bool, format: AnswerFormat = PLAIN) -> None:  # noqa: A002
        self.is_chat = chat
        self.format = format
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": model,
        }
        self._chunk_head = {**self._head, "object": f"{kind}.chunk" if chat else kind}
        self._head["object"] = kind

    def parts(self) -> Parts | None:
        """What finds the parts of the answer; None: all of it is content."""
        return None if self.format == PLAIN else Parts(self.format)

    def whole(
        self, steps: Sequence[Step], request: TextRequest, logprobs: AnswerLogprobs | None = None
    ) -> dict[str, Any]:
        """The answer as one document."""
        text = b"".join(piece for step in steps for piece in step.pieces).decode("utf-8", "replace")
        content: dict[str, Any] = {"message": self._message(text)} if self.is_chat else {"text": text}
        called = self.is_chat and "tool_calls" in content["message"]
        found = None
        if logprobs is not None:
            for step in steps:
                logprobs.push(step)
            found = logprobs.take()
        choice = _choice(content, found, finish_reason(request, called=called))
        return {
            **self._head,
            "choices": [choice],
            "usage": usage(request),
            **_timings(request),
        }

    def _message(self, text: str) -> dict[str, Any]:
        parser = self.parts()
        parts = [*parser.push(text), *parser.end()] if parser is not None else [Part(0, text)]
        calls = [tool_call(part.call) for part in parts if part.call is not None]
        reasoning = "".join(part.text for part in parts if part.is_reasoning)
        content = "".join(part.text for part in parts if not part.is_reasoning)
        message = {"role": "assistant", "content": None if calls and not content else content}
        others = {"reasoning_content": reasoning, "tool_calls": calls}
        return message | {name: value for name, value in others.items() if value}

    def text(self, text: str, *, is_reasoning: bool = False) -> dict[str, Any]:
        """A piece of text, as what a chunk has of it."""
        if not self.is_chat:
            return {"text": text}
        return {"delta": {"reasoning_content" if is_reasoning else "content": text}}

    def chunk(
        self, content: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        """A chunk of a stream."""
        return {**self._chunk_head, "choices": [_choice(content, logprobs, finish)]}

    def first(self) -> Iterable[dict[str, Any]]:
        """The beginning of a stream."""
        if self.is_chat:
            yield self.chunk({"delta": {"role": "assistant", "content": ""}})

    def last(
        self, request: TextRequest, logprobs: dict[str, Any] | None = None, *, called: bool = False
    ) -> dict[str, Any]:
        """The end of a stream; `called`: whether it had calls of tools."""
        content: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return self.chunk(content, logprobs, finish_reason(request, called=called)) | _timings(request)

    def usage(self, request: TextRequest) -> dict[str, Any]:
        """The usage, sent after the end of a stream."""
        return {**self._chunk_head, "choices": [], "usage": usage(request)}


def _choice(content: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": 0, **content, "logprobs": logprobs, "finish_reason": finish}


def tool_call(call: ToolCall) -> dict[str, Any]:
    """OpenAI's `tool_calls` entry, with a new id."""
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": call._asdict()}


def finish_reason(request: TextRequest, *, called: bool = False) -> str:
    """OpenAI's `finish_reason`; `called`: whether the text has calls of tools. As in llama-server, a limit is first."""
    if request.metrics.stop in (LIMIT, CONTEXT_FULL):
        return "length"
    return "tool_calls" if called else "stop"


def usage(request: TextRequest) -> dict[str, Any]:
    """OpenAI's `usage`."""
    n_prompt, n_text = len(request.prompt), sum(step.n_tokens for step in request.metrics.steps)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_text,
        "total_tokens": n_prompt + n_text,
        "prompt_tokens_details": {"cached_tokens": request.n_cached},
    }


def _timings(request: TextRequest) -> dict[str, Any]:
    """llama-server's `timings`."""
    statistics = request.metrics.statistics()
    prompt, text, draft = statistics.prompt, statistics.generation, statistics.draft
    n_read = len(request.prompt) - request.n_cached
    timings = {
        "cache_n": request.n_cached,
        "prompt_n": n_read,
        "prompt_ms": 1000 * prompt.seconds,
        "prompt_per_token_ms": 1000 * prompt.seconds / n_read,
        "prompt_per_second": n_read / prompt.seconds if prompt.seconds else None,
        "predicted_n": text.tokens,
        "predicted_ms": 1000 * text.seconds,
        "predicted_per_token_ms": 1000 / text.tokens_per_s if text.tokens_per_s else None,
        "predicted_per_second": text.tokens_per_s,
    }
    if sources := [source for source in (draft, statistics.lookup) if source is not None]:
        timings |= {
            "draft_n": sum(source.verified for source in sources),
            "draft_n_accepted": sum(source.accepted for source in sources),
        }
    return {"timings": timings}

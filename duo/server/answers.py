"""Answers: a generation as OpenAI's JSON."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

from duo.engine.slot import TextRequest
from duo.engine.text import CONTEXT_FULL, LIMIT
from duo.server.parts import PLAIN, AnswerFormat
from duo.spec.types import Step


class Shape:
    """The JSON of one answer, of a chat or a completion."""

    def __init__(self, model: str, *, chat: bool, format: AnswerFormat = PLAIN) -> None:  # noqa: A002 - OpenAI's word
        self._chat = chat
        self._format = format
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": model,
        }
        self._kinds = (kind, f"{kind}.chunk" if chat else kind)

    def whole(self, text: str, request: TextRequest) -> dict[str, Any]:
        """The answer as one document."""
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason(request)}
        return {
            **self._head,
            "object": self._kinds[0],
            "choices": [choice],
            "usage": usage(request),
            **_timings(request),
        }

    def first(self) -> Iterable[dict[str, Any]]:
        """The beginning of a stream."""
        if self._chat:
            yield self._chunk({"delta": {"role": "assistant", "content": ""}})

    def step(self, step: Step) -> dict[str, Any]:
        """A chunk of a stream. `duo`: its number of tokens, of characters that were candidates, and their source."""
        text = step.text
        content: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        accepted = len(_decode(step.pieces[: step.n_accepted]))
        return self._chunk(content) | {
            "duo": {"tokens": len(step.tokens), "accepted": accepted, "source": step.source.value}
        }

    def last(self, request: TextRequest) -> dict[str, Any]:
        """The end of a stream."""
        content: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._chunk(content, finish_reason(request)) | _timings(request)

    def usage(self, request: TextRequest) -> dict[str, Any]:
        """The usage, sent after the end of a stream."""
        return {**self._head, "object": self._kinds[1], "choices": [], "usage": usage(request)}

    def _chunk(self, content: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": self._kinds[1], "choices": [choice]}


def finish_reason(request: TextRequest) -> str:
    """OpenAI's `finish_reason`."""
    return "length" if request.metrics.stop in (LIMIT, CONTEXT_FULL) else "stop"


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


def _decode(pieces: Iterable[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")

"""Chunks: the steps of a text as the documents of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from duo.engine.slot import TextRequest
from duo.server.answers import Shape, tool_call
from duo.server.logprobs import AnswerLogprobs
from duo.server.parts import Part
from duo.spec.types import Step

_TARGET = "target"  # beside the names of sources


class Sources:
    """Where the characters of a text come from: the draft, the lookup, or the target itself."""

    def __init__(self) -> None:
        self._runs: deque[tuple[str, int]] = deque()  # source and number of characters, from `_start` on
        self._start = 0
        self._n_tokens = 0

    def push(self, step: Step) -> None:
        """The next step of the text."""
        self._n_tokens += len(step.tokens)
        n = len(step.text)
        n_drafted = min(n, len(b"".join(step.pieces[: step.n_accepted]).decode("utf-8", "replace")))
        self._runs += [(step.source.value, n_drafted), (_TARGET, n - n_drafted)]

    def take(self, start: int, n: int) -> dict[str, Any]:
        """A chunk's field `duo`: the tokens since the last chunk, and the runs of `n` characters from `start` on."""
        self._skip(start - self._start)
        tokens, self._n_tokens = self._n_tokens, 0
        return {"tokens": tokens, "sources": self._skip(n)}

    def _skip(self, n: int) -> list[tuple[str, int]]:
        """Remove the next `n` characters; their runs."""
        found: list[tuple[str, int]] = []
        self._start += n
        while n:
            source, length = self._runs.popleft()
            if length > n:
                self._runs.appendleft((source, length - n))
            if taken := min(n, length):
                before = found.pop()[1] if found and found[-1][0] == source else 0
                found.append((source, before + taken))
            n -= taken
        return found


class Chunks:
    """Makes the documents of a stream."""

    def __init__(
        self, shape: Shape, request: TextRequest, logprobs: AnswerLogprobs | None = None, *, sources: bool = False
    ) -> None:
        """`sources`: whether each chunk has a field `duo`."""
        self._shape = shape
        self._request = request
        self._logprobs = logprobs
        self._sources = Sources() if sources else None
        self._parts = shape.parts()
        self._n_text = 0  # characters
        self._n_calls = 0

    def begin(self) -> Iterable[dict[str, Any]]:
        """The chunks before the text."""
        return self._shape.first()

    def push(self, step: Step) -> list[dict[str, Any]]:
        """The chunks for the next step."""
        if self._logprobs is not None:
            self._logprobs.push(step)
        if self._sources is not None:
            self._sources.push(step)
        if not any(step.pieces):
            return []
        text = step.text
        if self._parts is not None:
            return [self._chunk(part) for part in self._parts.push(text)]
        start, self._n_text = self._n_text, self._n_text + len(text)
        return [self._finished(self._shape.text(text), start, len(text))]

    def end(self, *, include_usage: bool) -> Iterable[dict[str, Any]]:
        """The chunks at the end of the text."""
        if self._parts is not None:
            yield from map(self._chunk, self._parts.end())
        yield self._shape.last(self._request, self._new_logprobs(), called=self._n_calls > 0)
        if include_usage:
            yield self._shape.usage(self._request)

    def _chunk(self, part: Part) -> dict[str, Any]:
        if part.call is not None:
            content: dict[str, Any] = {"delta": {"tool_calls": [{"index": self._n_calls, **tool_call(part.call)}]}}
            self._n_calls += 1
        else:
            content = self._shape.text(part.text, is_reasoning=part.is_reasoning)
        return self._finished(content, part.start, len(part.text))

    def _finished(self, content: dict[str, Any], start: int, n: int) -> dict[str, Any]:
        document = self._shape.chunk(content, self._new_logprobs() if self._logprobs is not None else None)
        if self._sources is not None:
            document["duo"] = self._sources.take(start, n)
        return document

    def _new_logprobs(self) -> dict[str, Any] | None:
        """The logprobs since the last chunk, if there are any."""
        found = self._logprobs.take() if self._logprobs is not None else {}
        return found if any(found.values()) else None

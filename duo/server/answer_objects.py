"""Answer objects: what answers are in the document of the API. The answers are made in answers.py and chunks.py."""

from __future__ import annotations

from typing import Literal

import msgspec


class Usage(msgspec.Struct):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class CalledFunction(msgspec.Struct):
    """The name of a tool, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCallObject(msgspec.Struct):
    """A call of a tool. `index`: in a stream."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | msgspec.UnsetType = msgspec.UNSET


class MessageObject(msgspec.Struct):
    """The answer of a chat, or in a stream a part of it."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallObject] | msgspec.UnsetType = msgspec.UNSET


class SourcesObject(msgspec.Struct):
    """The tokens since the last event; what wrote the characters of this one: draft, lookup or target, and how many."""

    tokens: int
    sources: list[tuple[Literal["draft", "lookup", "target"], int]]


class LikelyToken(msgspec.Struct):
    """A token, its logprob, and its bytes in a text: null for a special token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenToken(LikelyToken):
    """A token of a chat's answer, and the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChoiceLogprobs(msgspec.Struct):
    """Of a chat `content`, of a completion the lists with one item for each token."""

    content: list[ChosenToken] | msgspec.UnsetType = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET
    tokens: list[str] | msgspec.UnsetType = msgspec.UNSET
    token_logprobs: list[float] | msgspec.UnsetType = msgspec.UNSET
    top_logprobs: list[dict[str, float]] | msgspec.UnsetType = msgspec.UNSET
    text_offset: list[int] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct):
    """A text."""

    index: Literal[0]
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    text: str | msgspec.UnsetType = msgspec.UNSET
    message: MessageObject | msgspec.UnsetType = msgspec.UNSET
    delta: MessageObject | msgspec.UnsetType = msgspec.UNSET


class CompletionObject(msgspec.Struct):
    """A generation, or an event of a stream. `duo`: if the request asks for it."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    timings: dict[str, float | None] | msgspec.UnsetType = msgspec.UNSET
    duo: SourcesObject | msgspec.UnsetType = msgspec.UNSET

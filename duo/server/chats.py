"""Chats: the prompt of a chat, and what its answer may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from duo.link.guard import ApiError
from duo.llama.chat_template import RESERVED, THINK, ChatTemplate
from duo.llama.model import Model
from duo.server.api import ChatRequest
from duo.server.bodies import MOST_OPTIONS
from duo.server.parts import AnswerFormat
from duo.server.tokens import check_text
from duo.server.tools import Calls


@dataclass(frozen=True, slots=True)
class Chat:
    """The prompt of a chat. `thinks`: whether it ends inside a thought; None: the model is not known to think."""

    prompt: str
    thinks: bool | None
    calls: Calls | None  # None: the answer has none

    @property
    def grammar(self) -> Callable[[], str] | None:
        """What makes the grammar of the answer, if there may be calls: see Calls.grammar()."""
        return partial(self.calls.grammar, self.thinks) if self.calls is not None else None

    def format(self, reasoning: str | None) -> AnswerFormat:
        """What is to be found in the answer; `reasoning`: the request's `reasoning_format`."""
        return AnswerFormat(None if reasoning == "none" else self.thinks, self.calls is not None)


def rendered(body: ChatRequest, model: Model, n_ctx: int) -> Chat:
    """The prompt of a chat. Raises ApiError if it is invalid, and PromptError if the model's template refuses it."""
    if not body.messages:
        raise ApiError(400, "messages must not be empty")
    calls = Calls.of(body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls is not False)
    if sum(message.n_call_bytes for message in body.messages) > MOST_OPTIONS:
        raise ApiError(413, f"the arguments of tool_calls may have at most {MOST_OPTIONS} bytes")
    messages = [message.plain() for message in body.messages]
    tools = [tool.plain() for tool in body.tools or ()]
    options = body.chat_template_kwargs or {}
    if reserved := [name for name in RESERVED if name in options]:
        raise ApiError(400, f"chat_template_kwargs must not have {reserved[0]!r}")
    _check_size(messages, [tools, options], model, n_ctx)
    template = model.tool_template if tools else model.chat_template
    if tools:
        _check_tools(template, parses=calls is not None)
    prompt = template.render(messages, tools, options)
    check_text(prompt, model, n_ctx)
    thinks = prompt.rstrip().endswith(THINK) if template.has_thoughts else None
    return Chat(prompt, thinks, calls)


def _check_size(messages: list[dict[str, Any]], others: list[Any], model: Model, n_ctx: int) -> None:
    """Raise ApiError if there is too much text: a template may copy it often."""
    texts = [message.get(name, "") for message in messages for name in ("content", "reasoning_content")]
    if others := [*(message["tool_calls"] for message in messages if "tool_calls" in message), *filter(None, others)]:
        texts.append(msgspec.json.encode(others).decode())
    check_text("".join(texts), model, n_ctx, is_prompt=False)


def _check_tools(template: ChatTemplate, *, parses: bool) -> None:
    """Raise ApiError if the model cannot be told about tools, or calls them in a format that is not parsed."""
    if not template.supports_tools:
        message = "this model's chat template has no tools: use a model that was trained for them, such as Qwen3"
        raise ApiError(400, f"{message}, or ask for JSON with response_format")
    if parses and not template.has_json_calls:
        message = "this model's chat template writes tool calls in a format that duo does not parse"
        raise ApiError(400, f"{message}: it parses that of Hermes and Qwen, JSON between <tool_call> and </tool_call>")

"""Anthropic's Messages API: its bodies, and an answer as its JSON and its events."""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from duo.chat.conversation import (
    Conversation,
    Json,
    NamedTool,
    TextPart,
    effort_variables,
    text_of,
)
from duo.chat.parser import Part
from duo.engine.statistics import STOP_STRING
from duo.errors import ApiError
from duo.server.api import SharedFields, StopString, TextBody
from duo.server.formatter import Event, Formatter
from duo.speculation.types import Step

_OWN = ("thinking", "redacted_thinking", "tool_use", "tool_result")  # of a message, besides its content
_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 503: "overloaded_error",
}  # fmt: skip


class _Block(TextPart):
    """A block of content; the fields of all types."""

    thinking: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    content: "str | list[_Block] | _Block | None" = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[_Block], msgspec.Meta(max_length=4096)]


class _ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _Thinking(msgspec.Struct):
    type: str = "disabled"
    budget_tokens: int | None = None


class MessagesBody(SharedFields):
    """POST /v1/messages and /v1/messages/count_tokens."""

    messages: Annotated[list[_Message], msgspec.Meta(max_length=4096)] = msgspec.field(default_factory=list)
    max_tokens: int | None = None
    system: str | list[_Block] | None = None
    tools: Annotated[list[NamedTool], msgspec.Meta(max_length=256)] | None = None
    tool_choice: _ToolChoice | None = None
    stop_sequences: Annotated[list[StopString], msgspec.Meta(max_length=32)] | None = None
    thinking: _Thinking | None = None

    def options(self) -> TextBody:
        """How the text is written."""
        return TextBody(max_tokens=self.max_tokens, stop=self.stop_sequences, **self.shared())

    def conversation(self) -> Conversation:
        """What it asks to continue. Raises ApiError."""
        found, choice = Conversation(), self.tool_choice or _ToolChoice()
        if system := text_of(self.system, "system", between="\n"):
            found.say("system", system)
        for message in self.messages:
            if isinstance(message.content, str):
                found.say(message.role, message.content)
            else:
                _say(found, message.role, message.content)
        found.use(self.tools or (), (None, "custom", "function"))  # the last is OpenAI's
        only = choice.name if choice.type == "tool" else None
        kind = {"any": "required", "tool": "required"}.get(choice.type, choice.type)
        found.choose(kind, only, is_parallel=not choice.disable_parallel_tool_use)
        if self.output_config is not None:
            found.variables |= effort_variables(self.output_config.effort)
        if self.thinking is not None:
            found.variables |= {"enable_thinking": self.thinking.type != "disabled"}
            if self.thinking.budget_tokens is not None:
                found.variables["thinking_budget"] = self.thinking.budget_tokens  # of Seed-OSS
        return found


def _say(found: Conversation, role: str, blocks: Sequence[_Block]) -> None:
    """Add a message of these blocks: results of tools are messages of their own."""
    for block in blocks:
        if block.type == "tool_result":
            content = [block.content] if isinstance(block.content, _Block) else block.content
            found.say("tool", text_of(content, "tool", between="\n"), tool_call_id=block.tool_use_id)
    said = [block for block in blocks if block.type not in _OWN]
    text = text_of(said, found.sender(role), between="\n")
    thoughts = [block.thinking for block in blocks if block.type == "thinking"]
    calls = [block for block in blocks if block.type == "tool_use"]
    if said or thoughts or calls:
        found.say(role, text, **({"reasoning_content": "\n".join(thoughts)} if thoughts else {}))
    for call in calls:
        found.call(call.id, call.name, call.input)


def messages_error(error: ApiError) -> Json:
    """The JSON of an error in this API."""
    kind = _KINDS.get(error.status, "api_error")
    code = {"code": error.code} if error.code is not None else {}
    return {"type": "error", "error": {"type": kind, "message": str(error)[:500], **code}}


class MessagesFormatter(Formatter):
    """See Formatter."""

    _n_blocks = 0
    _open = ""  # the type of the block that is being written
    _n_calls = 0

    def whole(self, steps: Sequence[Step]) -> Json:
        """See Formatter."""
        blocks = [self._block(part) for part in self.parts(steps)]
        return self._message(blocks) | self._ending() | {"usage": self._usage()} | self.used

    def begin(self) -> Iterator[Event]:
        """See Formatter."""
        nothing = {"stop_reason": None, "stop_sequence": None}
        usage = self._usage() | {"output_tokens": 0}
        yield _event("message_start", message=self._message([]) | nothing | {"usage": usage})
        yield _event("ping")

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """See Formatter."""
        for part in parts:
            name = "thinking" if part.is_reasoning else "text"
            if part.call is not None or self._open != name:
                yield from self._close()
                block = self._block(part._replace(text=""))
                self._open = str(block["type"])
                block |= {"input": {}} if part.call is not None else {}
                yield _event("content_block_start", index=self._n_blocks, content_block=block)
            if part.call is None:
                yield self._delta(f"{name}_delta", **{name: part.text})
            else:
                yield self._delta("input_json_delta", partial_json=part.call.arguments)
                yield from self._close()

    def end(self) -> Iterator[Event]:
        """See Formatter."""
        yield from super().end()
        yield from self._close()
        yield _event("message_delta", delta=self._ending(), usage=self._usage(), **self.used)
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterator[Event]:
        """See Formatter."""
        yield "error", messages_error(error)

    def _delta(self, kind: str, **written: str) -> Event:
        return _event("content_block_delta", index=self._n_blocks, delta={"type": kind, **written})

    def _close(self) -> Iterator[Event]:
        if self._open:
            if self._open == "thinking":
                yield self._delta("signature_delta", signature="")
            yield _event("content_block_stop", index=self._n_blocks)
            self._n_blocks, self._open = self._n_blocks + 1, ""

    def _block(self, part: Part) -> Json:
        """A block of content with all of a part."""
        if part.call is None:
            if part.is_reasoning:
                return {"type": "thinking", "thinking": part.text, "signature": ""}
            return {"type": "text", "text": part.text}
        self._n_calls += 1
        try:
            arguments = json.loads(part.call.arguments)
        except ValueError:  # a number may be too large
            arguments = {}
        return {
            "type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": part.call.name, "input": arguments,
        }  # fmt: skip

    def _message(self, content: list[Json]) -> Json:
        head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        return {**head, "model": self.options.model or self.model_name, "content": content}

    def _ending(self) -> Json:
        """Why the text has ended."""
        stop = self.text.metrics.stop
        reason = "max_tokens" if self.is_cut else "stop_sequence" if stop == STOP_STRING else "end_turn"
        reason = "tool_use" if self._n_calls and not self.is_cut else reason
        return {
            "stop_reason": reason,
            "stop_sequence": self.text.metrics.stopped_by if reason == "stop_sequence" else None,
        }

    def _usage(self) -> Json:
        n_prompt, n_cached, n_text = self.counts
        cached: dict[str, Any] = {"cache_read_input_tokens": n_cached, "cache_creation_input_tokens": 0}
        if self.format.has_thoughts:
            cached["output_tokens_details"] = {"thinking_tokens": self.n_reasoning}
        return {"input_tokens": n_prompt - n_cached, "output_tokens": n_text, **cached}


def _event(name: str, **data: Any) -> Event:
    return name, {"type": name, **data}

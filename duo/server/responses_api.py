"""OpenAI's Responses API, without a store: its body, and an answer as its JSON and its events."""

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
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
from duo.errors import ApiError
from duo.server.api import ChatBody, LogprobCount, SharedFields, TextBody
from duo.server.formatter import Event, Formatter, LogprobsFormatter
from duo.speculation.types import Step

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
_UNFINISHED = ("in_progress", "incomplete")
_FUNCTION = (None, "function")  # types of tools
_ITEMS = {  # of the output: the prefix of their ids, and the name of what is written
    "message": ("msg", "output_text"),
    "function_call": ("fc", "function_call_arguments"),
    "reasoning": ("rs", "reasoning_text"),
}


class _InputItem(msgspec.Struct):
    """An item of the input; the fields of all types."""

    type: str = "message"
    role: str = ""
    status: str | None = None
    content: str | Annotated[list[TextPart], msgspec.Meta(max_length=4096)] | None = None
    call_id: str = ""
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    output: str | Annotated[list[TextPart], msgspec.Meta(max_length=4096)] = ""


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponsesBody(SharedFields, kw_only=True):
    """POST /v1/responses."""

    input: str | Annotated[list[_InputItem], msgspec.Meta(max_length=8192)]
    instructions: str | None = None
    tools: Annotated[list[NamedTool], msgspec.Meta(max_length=256)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: int | None = None
    include: list[str] | None = None
    top_logprobs: LogprobCount | None = None
    background: bool | None = None
    metadata: Json | None = None
    previous_response_id: str | None = None
    conversation_: str | Json | None = msgspec.field(default=None, name="conversation")

    def options(self) -> TextBody:
        """How the text is written. Raises ApiError for what is not supported."""
        given = {"previous_response_id": self.previous_response_id, "conversation": self.conversation_}
        for name, value in (given | {"background": self.background or None}).items():
            if value is not None:
                raise ApiError(400, f"{name} is not supported, as no response is stored: send the whole input")
        return ChatBody(
            logprobs=bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ()) or None,
            top_logprobs=self.top_logprobs or None,
            max_tokens=self.max_output_tokens,
            **self.shared(),
        )

    def conversation(self) -> Conversation:
        """What it asks to continue. Raises ApiError."""
        found, choice = Conversation(), self.tool_choice or "auto"
        if self.instructions:
            found.say("system", self.instructions)
        items = [_InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        thoughts = ""  # of the message or the call after it
        for item in items:
            if item.type == "reasoning":
                thoughts = text_of(item.content, "assistant", _TEXTS)
                continue
            _add(found, item, thoughts)
            thoughts = ""
        # Here, a message is a whole one unless it says otherwise.
        found.continues = bool(items) and items[-1].role == "assistant" and items[-1].status in _UNFINISHED
        found.use(self.tools or (), _FUNCTION)
        if isinstance(choice, NamedTool) and choice.type not in _FUNCTION:
            raise ApiError(400, f"a tool_choice of type {str(choice.type)[:40]!r} is not supported")
        kind, only = ("required", choice.name) if isinstance(choice, NamedTool) else (choice, None)
        found.choose(kind, only, is_parallel=self.parallel_tool_calls is not False)
        found.variables = effort_variables(self.reasoning.effort if self.reasoning is not None else None)
        return found


def _add(found: Conversation, item: _InputItem, thoughts: str) -> None:
    """Add an item. Raises ApiError."""
    more = {"reasoning_content": thoughts} if thoughts else {}
    match item.type:
        case "message":
            role = "system" if item.role == "developer" else item.role or "user"
            found.say(role, text_of(item.content, found.sender(role), _TEXTS), **(more if role == "assistant" else {}))
        case "function_call":
            if more:
                found.say("assistant", "", **more)
            found.call(item.call_id, item.name, item.arguments)
        case "function_call_output":
            found.say("tool", text_of(item.output, "tool", _TEXTS), tool_call_id=item.call_id)
        case _ if item.type.startswith("mcp_") or item.type.endswith(("_call", "_call_output")):
            found.ignored.append(f"input of type {item.type}")  # of another server's tools, in each later request, too
        case _:
            raise ApiError(
                400, f"an input of type {item.type[:40]!r} is not supported: only messages and functions are"
            )


class ResponsesFormatter(Formatter):
    """See Formatter. An item of the output is open while it is written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._id, self._created = f"resp_{secrets.token_hex(16)}", int(time.time())
        self._numbers = count()
        self._output: list[Json] = []
        self._item, self._kind, self._written = Json(), "", ""  # the open item, its type and text; no type: none is
        self._logprobs = LogprobsFormatter(self.model, chat=True, no_bytes=[])
        self._unshown: list[tuple[int, Json]] = []  # logprobs of tokens with the offset where each begins
        self._shown: list[Json] = []  # those of the open item

    def count(self, step: Step) -> None:
        """See Formatter."""
        super().count(step)
        self._logprobs.push(step)

    def whole(self, steps: Sequence[Step]) -> Json:
        """See Formatter."""
        list(self.add(self.parts(steps)))
        list(self._close(self._status))
        return self._response(self._status)

    def begin(self) -> Iterator[Event]:
        """See Formatter."""
        for name in ("created", "in_progress"):
            yield self._event(name, response=self._response("in_progress"))

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """See Formatter."""
        for part in parts:
            kind = "function_call" if part.call is not None else "reasoning" if part.is_reasoning else "message"
            if part.call is not None or self._kind != kind:
                yield from self._close()
                yield from self._open(kind, part)
            text = part.text if part.call is None else part.call.arguments
            more = {"logprobs": self._logprobs_of(part.start, part.start + len(text))} if kind == "message" else {}
            self._written += text
            yield self._in_item(f"{_ITEMS[kind][1]}.delta", delta=text, **more)
            if part.call is not None:
                yield from self._close()

    def end(self) -> Iterator[Event]:
        """See Formatter."""
        yield from super().end()
        yield from self._close(self._status)
        yield self._event(self._status, response=self._response(self._status))

    def fail(self, error: ApiError) -> Iterator[Event]:
        """See Formatter."""
        failed = self._response("failed") | {"error": {"code": error.code or "server_error", "message": str(error)}}
        yield self._event("failed", response=failed)

    def _event(self, name: str, **data: Any) -> Event:
        name = f"response.{name}"
        return name, {"type": name, "sequence_number": next(self._numbers), **data}

    def _in_item(self, name: str, **data: Any) -> Event:
        place = {} if self._kind == "function_call" else {"content_index": 0}
        return self._event(name, item_id=self._item["id"], output_index=len(self._output), **place, **data)

    @property
    def _status(self) -> str:
        return "incomplete" if self.is_cut else "completed"

    def _open(self, kind: str, part: Part) -> Iterator[Event]:
        self._kind, self._written, self._shown = kind, "", []
        item: Json = {"id": f"{_ITEMS[kind][0]}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress"}
        if part.call is not None:
            item |= {"call_id": f"call_{secrets.token_hex(12)}", "name": part.call.name, "arguments": ""}
        else:
            item |= {"summary": [], "content": []} if part.is_reasoning else {"role": "assistant", "content": []}
        self._item = item
        yield self._event("output_item.added", output_index=len(self._output), item=item)
        if part.call is None:
            yield self._in_item("content_part.added", part=self._part())

    def _logprobs_of(self, start: int, end: int) -> list[Json]:
        """Those of the tokens that begin between these offsets; what begins before is in no message."""
        self._unshown += self._logprobs.entries()
        found = [entry for offset, entry in self._unshown if start <= offset < end]
        self._unshown = [one for one in self._unshown if one[0] >= end]
        self._shown += found
        return found

    def _part(self) -> Json:
        """The content of the open item."""
        part: Json = {"type": _ITEMS[self._kind][1], "text": self._written}
        return part if self._kind == "reasoning" else {**part, "annotations": [], "logprobs": self._shown}

    def _close(self, status: str = "completed") -> Iterator[Event]:
        if not self._kind:
            return
        done = f"{_ITEMS[self._kind][1]}.done"
        if self._kind == "function_call":
            self._item["arguments"] = self._written
            yield self._in_item(done, arguments=self._written)
        else:
            part = self._part()
            self._item["content"] = [part]
            more = {"logprobs": self._shown} if self._kind == "message" else {}
            yield self._in_item(done, text=self._written, **more)
            yield self._in_item("content_part.done", part=part)
        item = self._item | {"status": status}
        yield self._event("output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._kind = ""

    def _response(self, status: str) -> Json:
        body = self.body
        assert isinstance(body, ResponsesBody)
        n_prompt, n_cached, n_text = self.counts
        usage = {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": n_cached, "cache_write_tokens": 0},
            "output_tokens": n_text,
            "output_tokens_details": {"reasoning_tokens": self.n_reasoning},
            "total_tokens": n_prompt + n_text,
        }
        sampling, choice = self.text.config.sampling, body.tool_choice
        named = {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.model_name,
            "output": list(self._output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
            "store": False,
            "temperature": sampling.temp,
            "text": {"format": getattr(body.text, "format", None) or {"type": "text"}},
            "tool_choice": named or choice or "auto",
            "tools": [
                {"type": "function", "name": tool.name, "description": tool.description, "strict": False}
                | {"parameters": tool.given(tool.name)}
                for tool in body.tools or ()
                if tool.type in _FUNCTION
            ],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else usage,
            **({} if status == "in_progress" else self.used),
        }

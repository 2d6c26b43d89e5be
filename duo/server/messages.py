"""Messages: those of a chat, as a chat template takes them. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from duo.link.guard import ApiError


class ContentPart(msgspec.Struct):
    """A part of a message."""

    type: str
    text: str = ""


class GivenFunction(msgspec.Struct):
    """What a tool call calls. OpenAI's arguments are JSON in a string."""

    name: str
    arguments: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b'""'))  # not decoded: there may be much

    def parsed(self) -> dict[str, Any]:
        """The call for the chat template. Raises ApiError if the arguments are not a JSON object."""
        try:
            arguments = msgspec.json.decode(self.arguments, type=str | dict[str, Any])
            if isinstance(arguments, str):
                arguments = msgspec.json.decode(arguments.strip() or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            message = f"tool_calls: the arguments of {self.name[:100]!r} are not a JSON object: {error}"
            raise ApiError(400, message) from None
        return {"name": self.name, "arguments": arguments}


class GivenCall(msgspec.Struct):
    """A call in a message of the assistant."""

    function: GivenFunction
    id: str | None = None
    type: Literal["function"] = "function"

    def parsed(self) -> dict[str, Any]:
        """The call for the chat template. Raises ApiError: see GivenFunction."""
        id_ = {"id": self.id} if self.id is not None else {}
        return {**id_, "type": self.type, "function": self.function.parsed()}


class ChatMessage(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[GivenCall] | None = None
    tool_call_id: str | None = None

    @property
    def size(self) -> int:
        """Number of characters, and of parts."""
        content = self.content or ""
        parts = content if isinstance(content, list) else [ContentPart("text", content)]
        text = len(parts) + sum(len(part.text) for part in parts) + len(self.reasoning_content or "")
        return text + self.n_call_bytes

    @property
    def n_call_bytes(self) -> int:
        """Bytes of the arguments of calls, which are not decoded yet."""
        return sum(len(bytes(call.function.arguments)) for call in self.tool_calls or ())

    def plain(self) -> dict[str, Any]:
        """The message for the chat template. Raises ApiError if it is not text, or has an invalid call."""
        role = "system" if self.role == "developer" else self.role  # OpenAI's newer name for it
        message: dict[str, Any] = {"role": role, "content": self._text()}
        if self.tool_calls:
            message["tool_calls"] = [call.parsed() for call in self.tool_calls]
        for name in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        return message

    def _text(self) -> str:
        """The content; templates concatenate it, so that no content is an empty text."""
        if not isinstance(self.content, list):
            return self.content or ""
        if other := [part.type for part in self.content if part.type != "text"]:
            raise ApiError(400, f"content of type {other[0][:40]!r} is not supported: only text is")
        return "".join(part.text for part in self.content)

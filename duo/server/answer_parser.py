"""AnswerParser: finds the reasoning, the content and the tool calls in the text of a chat's answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from duo.llama.chat_template import CALL, END_OF_CALL, END_OF_THOUGHT, THINK

_SPACE = re.compile(r"\s*")
_ESCAPE = re.compile(r"\\.")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What the text of an answer may have besides content."""

    thinks: bool | None = None  # whether the prompt ends inside <think>; None: reasoning is left in the content
    has_tools: bool = False  # whether there may be calls of tools


PLAIN = AnswerFormat()


class ToolCall(NamedTuple):
    """A call of a tool. Its arguments are JSON, as the model wrote them."""

    name: str
    arguments: str


class Part(NamedTuple):
    """A part of an answer: reasoning or content with the offset of its first character in the whole text, or a call."""

    start: int
    text: str  # empty if it is a call
    is_reasoning: bool = False
    call: ToolCall | None = None


class AnswerParser:
    """Takes the text of an answer piece by piece; what may be a tag or a call waits until that is known.

    The tags are those of Hermes and Qwen. White space around reasoning and calls belongs to nothing. What looks like a
    call but is not complete or valid is content.
    """

    def __init__(self, format: AnswerFormat) -> None:  # noqa: A002
        self._thinks = bool(format.thinks)
        self._has_tools = format.has_tools
        self._state: Callable[[], bool] = self._in_text if format.thinks is None else self._at_start
        self._is_reasoning = False
        self._skips_space = False
        self._text = ""  # from the offset `_base` on; up to `_at` it is done with
        self._base = self._at = 0
        self._held: list[str] = []  # what is directly before `_at`, and may become a part
        self._n_judged = 0  # pieces of `held` that were searched for quotes
        self._in_string = False  # after these
        self._parts: list[Part] = []

    def push(self, text: str) -> list[Part]:
        """The parts that the next piece of the text completes or continues."""
        self._base += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        while self._state():
            pass
        return self._taken()

    def end(self) -> list[Part]:
        """What is left at the end of the text."""
        if self._state == self._at_start and self._thinks:
            self._begin_text(is_reasoning=True)
        self._hold(len(self._text))
        if self._is_reasoning and not "".join(self._held).strip():
            self._held.clear()
        self._show()
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    # Each of these methods goes on from `_at` and tells whether it can be called again with the same text.

    def _at_start(self) -> bool:
        self._hold(self._after_space())
        if THINK.startswith(self._text[self._at :]) and len(self._text) - self._at < len(THINK):
            return False
        self._state = self._in_text
        if begins := self._text.startswith(THINK, self._at):
            self._at += len(THINK)
        if begins or self._thinks:
            self._begin_text(is_reasoning=True)
        return True

    def _in_text(self) -> bool:
        if self._skips_space:
            self._at = self._after_space()
            self._skips_space = self._at == len(self._text)
        tag = END_OF_THOUGHT if self._is_reasoning else CALL
        if not (self._is_reasoning or self._has_tools):
            self._hold(len(self._text))
            self._show()
            return False
        found, end = self._find(tag)
        if shown := self._text[self._at : end].rstrip():
            self._hold(self._at + len(shown))
            self._show()
        self._hold(end)
        if found and self._is_reasoning:
            self._at += len(tag)
            self._begin_text(is_reasoning=False)
        elif found:
            self._hold(self._at + len(tag))
            self._state = self._in_tag
        return found

    def _in_tag(self) -> bool:
        """After <tool_call>."""
        self._hold(self._after_space())
        if self._at == len(self._text):
            return False
        if self._text[self._at] == "{":
            self._n_judged, self._in_string = len(self._held), False
            self._state = self._in_call
        else:
            self._show(holds_space=True)
            self._state = self._in_text
        return True

    def _in_call(self) -> bool:
        found, end = self._find(END_OF_CALL)
        self._hold(end)
        if not found:
            return False
        is_inside = self._ends_in_string()
        self._hold(self._at + len(END_OF_CALL))
        if is_inside:
            return True
        self._state = self._in_text
        body = "".join(self._held).partition(CALL)[2].removesuffix(END_OF_CALL)
        if call := _parse(body):
            self._parts.append(Part(self._base + self._at, "", call=call))
            self._begin_text(is_reasoning=False)
        else:
            self._show()
        return True

    def _ends_in_string(self) -> bool:
        """Whether what is held ends inside a string of JSON, which has no line end."""
        _, line_end, line = "".join(self._held[self._n_judged :]).rpartition("\n")
        self._n_judged = len(self._held)
        self._in_string &= not line_end
        self._in_string ^= _ESCAPE.sub("", line).count('"') % 2 == 1
        return self._in_string

    def _begin_text(self, *, is_reasoning: bool) -> None:
        self._held.clear()
        self._is_reasoning = is_reasoning
        self._skips_space = True

    def _after_space(self) -> int:
        match = _SPACE.match(self._text, self._at)
        return match.end() if match else self._at

    def _find(self, tag: str) -> tuple[bool, int]:
        """Whether `tag` is there, and where it, or at the end of the text what may become it, begins."""
        if (i := self._text.find(tag, self._at)) >= 0:
            return True, i
        i = self._text.rfind("<", max(self._at, len(self._text) - len(tag) + 1))
        return False, i if i >= 0 and tag.startswith(self._text[i:]) else len(self._text)

    def _hold(self, end: int) -> None:
        if end > self._at:
            self._held.append(self._text[self._at : end])
            self._at = end

    def _show(self, *, holds_space: bool = False) -> None:
        """Make a part of what is held; `holds_space`: except the white space at its end."""
        text = "".join(self._held)
        shown = text.rstrip() if holds_space else text
        if shown:
            self._parts.append(Part(self._base + self._at - len(text), shown, self._is_reasoning))
        self._held = [text[len(shown) :]]


class _Call(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def _parse(body: str) -> ToolCall | None:
    """The call, or None if it is not valid."""
    try:
        call = msgspec.json.decode(body, type=_Call)
        arguments = bytes(call.arguments).decode()
        if arguments.startswith('"'):  # some models write the JSON as a string
            arguments = msgspec.json.decode(arguments, type=str)
    except (msgspec.DecodeError, RecursionError):
        return None
    return ToolCall(call.name, arguments) if arguments.startswith("{") else None

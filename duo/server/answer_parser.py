"""AnswerParser: finds the reasoning, the content and the tool calls in the text of a chat's answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
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

    def __init__(self, form: AnswerFormat) -> None:
        self._thinks = bool(form.thinks)
        self._has_tools = form.has_tools
        self._is_start = form.thinks is not None
        self._is_reasoning = False
        self._skips_space = False
        self._text = ""  # from the offset `_base` on; up to `_at` it is decided
        self._base = self._at = 0
        self._pieces: list[str] = []  # after it, that decide nothing
        # Of a call that begins at `_at`: up to where its end was searched (0: there is none), and its strings
        self._n_searched = self._n_judged = 0
        self._in_string = False

    def push(self, text: str) -> list[Part]:
        """The parts that the next piece of the text completes or continues."""
        self._pieces.append(text)
        waits_for_text = self._is_start or self._tag
        if (self._n_searched and ">" not in text) or (waits_for_text and text.isspace()):
            return []
        return list(self._parts(is_last=False))

    def end(self) -> list[Part]:
        """What is left at the end of the text."""
        return list(self._parts(is_last=True))

    @property
    def _tag(self) -> str:
        """The tag that ends what is being read; empty: none does."""
        return END_OF_THOUGHT if self._is_reasoning else CALL if self._has_tools else ""

    def _parts(self, *, is_last: bool) -> Iterator[Part]:
        self._text = self._text[self._at :] + "".join(self._pieces)
        self._n_searched, self._n_judged = max(0, self._n_searched - self._at), max(0, self._n_judged - self._at)
        self._base += self._at
        self._at = 0
        self._pieces.clear()
        if self._is_start and not self._begin(is_last=is_last):
            return
        while True:
            if self._skips_space:
                self._drop(self._after_space(self._at))
                self._skips_space = self._at == len(self._text)
            found, end = self._find(self._tag)
            yield from self._show(self._at + len(self._text[self._at : end].rstrip()) if self._tag else end)
            if not found:
                break
            after = end + len(self._tag)
            if self._is_reasoning:
                self._drop(after)
                self._is_reasoning, self._skips_space = False, True
            elif (end_of_call := self._end_of_call(after)) is None:
                break
            elif call := _parse(self._text[after : end_of_call - len(END_OF_CALL)]):
                self._drop(end_of_call)
                self._skips_space = True
                yield Part(self._base + self._at, "", call=call)
            else:
                yield from self._show(end_of_call)
        if is_last and not (self._is_reasoning and not self._text[self._at :].strip()):
            yield from self._show(len(self._text))

    def _begin(self, *, is_last: bool) -> bool:
        """Find out whether there is a thought at the beginning. False: it is not known yet."""
        space = self._after_space(0)
        if not is_last and len(self._text) - space < len(THINK) and THINK.startswith(self._text[space:]):
            return False
        if has_tag := self._text.startswith(THINK, space):
            self._drop(space + len(THINK))
        self._is_start = False
        self._is_reasoning = self._skips_space = has_tag or self._thinks
        return True

    def _end_of_call(self, begin: int) -> int | None:
        """The end of the call whose JSON begins at `begin`, or `begin` if it is not JSON; None: it is not known yet.

        An end tag in a string of the JSON is none; a string has no line end.
        """
        start = self._after_space(begin)
        if start == len(self._text):
            return None
        if self._text[start] != "{":
            return begin
        self._n_searched, self._n_judged = max(self._n_searched, start), max(self._n_judged, start)
        while (end := self._text.find(END_OF_CALL, self._n_searched)) >= 0:
            _, line_end, line = self._text[self._n_judged : end].rpartition("\n")
            self._in_string &= not line_end
            self._in_string ^= _ESCAPE.sub("", line).count('"') % 2 == 1
            self._n_judged, self._n_searched = end, end + len(END_OF_CALL)
            if not self._in_string:
                return self._n_searched
        self._n_searched = max(self._n_searched, len(self._text) - len(END_OF_CALL) + 1)
        return None

    def _show(self, end: int) -> Iterator[Part]:
        """The text up to `end` as a part."""
        if end > self._at:
            yield Part(self._base + self._at, self._text[self._at : end], self._is_reasoning)
            self._drop(end)

    def _drop(self, end: int) -> None:
        """The text up to `end` is decided."""
        self._at = end
        self._n_searched = self._n_judged = 0
        self._in_string = False

    def _after_space(self, start: int) -> int:
        match = _SPACE.match(self._text, start)
        return match.end() if match else start

    def _find(self, tag: str) -> tuple[bool, int]:
        """Whether `tag` is there, and where it, or at the end of the text what may become it, begins."""
        if tag and (i := self._text.find(tag, self._at)) >= 0:
            return True, i
        i = self._text.rfind("<", max(self._at, len(self._text) - len(tag) + 1)) if tag else -1
        return False, i if i >= 0 and tag.startswith(self._text[i:]) else len(self._text)


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

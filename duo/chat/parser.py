"""AnswerParser: finds the reasoning, the content and the tool calls in the text of a chat's answer. Pure."""

import re
from collections.abc import Generator, Iterator
from itertools import groupby
from typing import Annotated, NamedTuple

import msgspec

from duo.llama.chat_template import CALL, END_OF_CALL, THOUGHTS, Thought
from duo.speculation.types import Origin, Step

_ESCAPE = re.compile(r"\\.")


class AnswerFormat(NamedTuple):
    """What the text of an answer may have besides content."""

    thinks: bool | None = None  # whether the prompt ends inside a thought; None: reasoning is left in the content
    has_tools: bool = False  # whether there may be calls of tools
    thought: Thought = THOUGHTS[0]
    shows_tags: bool = False  # whether thoughts are part of the content, with what is around them

    @classmethod
    def after(cls, prompt: str, thought: Thought | None, **more: bool) -> "AnswerFormat":
        """That of the answer to a prompt, which may end inside a thought. `thought`: None: there are none."""
        thinks = prompt.rstrip().endswith(thought.begin) if thought is not None else None
        return cls(thinks, thought=thought or THOUGHTS[0], **more)

    @property
    def has_thoughts(self) -> bool:
        """Whether there may be reasoning beside the content."""
        return self.thinks is not None and not self.shows_tags


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


class Origins:
    """Where each character of an answer comes from."""

    def __init__(self) -> None:
        self._found: list[Origin | None] = []

    def push(self, step: Step) -> None:
        """The next step of the text."""
        n, drafted = len(step.text), b"".join(step.pieces[: step.n_accepted]).decode("utf-8", "replace")
        n_drafted = min(n, len(drafted))
        self._found += [step.source] * n_drafted + [None] * (n - n_drafted)

    def runs(self, part: Part) -> list[tuple[Origin | None, int]]:
        """How many characters of a part come from where, in their order; None: from the target itself."""
        return [(one, len([*same])) for one, same in groupby(self._found[part.start : part.start + len(part.text)])]


class AnswerParser:
    """Takes the text of an answer piece by piece; what may be a tag or a call waits until that is known.

    Calls have the tags of Hermes and Qwen. White space around reasoning and calls belongs to nothing. What looks like a
    call but is not complete or valid is content, and within a thought there are none.
    """

    def __init__(self, form: AnswerFormat) -> None:
        self._form = form
        self._text = ""  # that is not decided yet
        self._start = 0  # its offset in the answer
        self._is_start = form.thinks is not None
        self._is_reasoning = False
        self._skips_space = False
        self._then = ""  # what may come before the content
        self.thought = (0, 0)  # the offset of its first character so far, and that after its last

    def push(self, text: str) -> list[Part]:
        """The parts that the next piece of the text completes or continues."""
        self._text += text
        return list(self._parts(is_last=False))

    def end(self) -> list[Part]:
        """What is left at the end of the text."""
        return list(self._parts(is_last=True))

    def _parts(self, *, is_last: bool) -> Iterator[Part]:
        if self._is_start and not (yield from self._begin(is_last=is_last)):
            return
        thought = self._form.thought
        while (yield from self._skip(is_last=is_last)):
            tag = thought.end if self._is_reasoning else CALL if self._form.has_tools else ""
            if not tag:
                yield from self._show(len(self._text))
                break
            before, found, _ = self._text.partition(tag)
            n_certain = len(before) - (0 if found else n_begun(before, tag))
            yield from self._show(len(before[:n_certain].rstrip()))
            if not found:
                break
            n = self._text.index(tag) + len(tag)
            if self._is_reasoning:
                yield from self._leave_out(n)
                self._is_reasoning, self._skips_space, self._then = False, True, thought.then
            elif (n_call := _n_call(self._text[n:])) is None:
                break
            elif call := _parse(self._text[n : n + n_call].removesuffix(END_OF_CALL)):
                self._drop(n + n_call)
                self._skips_space = True
                yield Part(self._start, "", call=call)
            else:
                yield from self._show(n + n_call)
        if is_last and not (self._is_reasoning and not self._text.strip()):
            yield from self._show(len(self._text))

    def _begin(self, *, is_last: bool) -> Generator[Part, None, bool]:
        """Find out whether the text begins with a thought. False: it is not known yet."""
        thought, text = self._form.thought, self._text.lstrip()
        tags = [tag for tag in (thought.begin, thought.instead) if tag]
        if not is_last and any(len(text) < len(tag) and tag.startswith(text) for tag in tags):
            return False
        self._is_start, tag = False, next((tag for tag in tags if text.startswith(tag)), "")
        if tag:
            yield from self._leave_out(self._text.index(tag) + len(tag))
        self._is_reasoning = tag == thought.begin or (not tag and bool(self._form.thinks))
        self._skips_space = bool(tag) or self._is_reasoning
        return True

    def _skip(self, *, is_last: bool) -> Generator[Part, None, bool]:
        """Leave out what comes after a tag. False: it is not known yet whether that is there."""
        if self._then:
            if not is_last and len(self._text) < len(self._then) and self._then.startswith(self._text):
                return False
            if self._text.startswith(self._then):
                yield from self._leave_out(len(self._then))
            self._then = ""
        if self._skips_space and not self._form.shows_tags:
            self._drop(len(self._text) - len(self._text.lstrip()))
            self._skips_space = not self._text
        return True

    def _show(self, n: int) -> Iterator[Part]:
        """The next `n` characters as a part."""
        if n:
            part = Part(self._start, self._text[:n], self._is_reasoning and not self._form.shows_tags)
            if part.is_reasoning:
                self.thought = self.thought[0] if self.thought[1] else part.start, part.start + n
            yield part
            self._drop(n)

    def _leave_out(self, n: int) -> Iterator[Part]:
        """The next `n` characters are a tag, and the space before it."""
        if self._form.shows_tags:
            yield from self._show(n)
        else:
            self._drop(n)

    def _drop(self, n: int) -> None:
        self._text = self._text[n:]
        self._start += n


def n_begun(text: str, literal: str) -> int:
    """The length of the longest beginning of `literal` that `text` ends with."""
    return next(n for n in range(len(literal), -1, -1) if text.endswith(literal[:n]))


def _n_call(text: str) -> int | None:
    """The length of the call that `text` begins with, with its end tag; 0 if it is no JSON; None: it is not known yet.

    An end tag in a string of the JSON is none; a string has no line end.
    """
    if not text.lstrip().startswith("{"):
        return 0 if text.strip() else None
    end = -1
    while (end := text.find(END_OF_CALL, end + 1)) >= 0:
        line = text[:end].rpartition("\n")[2]
        if _ESCAPE.sub("", line).count('"') % 2 == 0:
            return end + len(END_OF_CALL)
    return None


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

"""ChatTemplate: writes a conversation as a prompt, in the format that the model was trained with."""

import functools
import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

from duo.errors import PromptError

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"  # what a model writes around a call


class Thought(NamedTuple):
    """What a model writes around a thought at the beginning of an answer."""

    begin: str
    end: str
    then: str = ""  # what may come between it and the content,
    instead: str = ""  # and before a content without a thought


_CHANNEL = "<|channel|>{}<|message|>"
# Of Qwen, DeepSeek and others; of Mistral; of gpt-oss (OpenAI's harmony).
THOUGHTS = (
    Thought("<think>", "</think>"),
    Thought("[THINK]", "[/THINK]"),
    Thought(
        _CHANNEL.format("analysis"),
        "<|end|>",
        f"<|start|>assistant{_CHANNEL.format('final')}",
        _CHANNEL.format("final"),
    ),
)
_TAGS = [CALL, END_OF_CALL, "<think>", "</think>", "[THINK]", "[/THINK]"]
# Tokens that are part of a text even where the vocabulary has them as special ones.
TAGS = frozenset(tag.encode() for tag in [*_TAGS, "<|channel|>", "<|message|>", "<|start|>", "<|end|>"])

RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")  # names that no option may have

# Transformers' block `generation` marks the assistant's text for training.
_MARK = re.compile(r"({%[-+]?\s*)(end)?generation(\s*[-+]?%})")

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Options = Mapping[str, Any] | None


class ChatText(str):
    """The prompt of a chat: a text that knows what in it is the template's, and what is written in the messages."""

    _render: Callable[..., str]
    _given: list[Any]

    def __new__(cls, render: Callable[..., str], *given: Any) -> "ChatText":
        """`given`: the messages, the tools and the options. Raises what `render` raises."""
        text = super().__new__(cls, render(*given))
        text._render, text._given = render, [*given]
        return text

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy is a plain text

    def marked(self, special: Collection[str]) -> tuple[str, str]:
        """The text with a mark within each of the `special` texts that the template did not write; and the mark.

        Both are empty if there are none. Raises PromptError if the template refuses the marks.
        """
        mark, n_marks = _new_mark(), 0

        def change(value: Any, special: Collection[str]) -> Any:
            nonlocal n_marks
            if isinstance(value, str):
                for text in filter(value.__contains__, special):
                    n_marks += 1
                    value = value.replace(text, text[:1] + mark + text[1:])
            elif isinstance(value, Mapping):
                own = _TAGS if value.get("role") == "assistant" else ()  # what a model writes itself
                special = [text for text in special if text not in own]
                return {change(name, special): change(one, special) for name, one in value.items()}
            elif isinstance(value, list | tuple):
                return [change(one, special) for one in value]
            return value

        changed = change(self._given, special)
        return (self._render(*changed), mark) if n_marks else ("", "")


def _new_mark() -> str:
    """What no text has. Digits: JSON, capitals and the like leave them as they are."""
    return str(secrets.randbits(64) + 2**64)


def begun(messages: Messages) -> str:
    """The field of the last message that begins the answer, a thought or the content; empty: the answer is a new one.

    Raises PromptError if that message has calls, which are no beginning.
    """
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        return ""
    if last.get("tool_calls"):
        raise PromptError("the last message has calls of tools, and cannot be continued: send their results")
    return "reasoning_content" if last.get("reasoning_content") and not last.get("content") else "content"


# A conversation with a call and its result, to see what a template does with them. No template contains these names.
_TOOL, _ARGUMENT, _VALUE, _ID = "zqtool", "zqargument", "zqvalue", "zq0000001"
_CALL = {"id": _ID, "type": "function", "function": {"name": _TOOL, "arguments": {_ARGUMENT: _VALUE}}}
_CONVERSATION: Messages = (
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": _ID, "name": _TOOL, "content": "!"},
)
_PROPERTIES = {_ARGUMENT: {"type": "string", "description": "?"}}
_PARAMETERS = {"type": "object", "properties": _PROPERTIES, "required": [_ARGUMENT]}
_TOOLS: Tools = ({"type": "function", "function": {"name": _TOOL, "description": "?", "parameters": _PARAMETERS}},)


class ChatTemplate:
    """A model's chat template, compiled, in jinja2's sandbox; nothing limits its time and memory. For any threads."""

    def __init__(
        self, source: str, *, name: str = "", bos: str = "", eos: str = "", variables: Mapping[str, Any] | None = None
    ) -> None:
        """`bos`, `eos`: the spelling of the tokens; `name`: of the model, for messages. Raises PromptError.

        variables: of the template, such as `enable_thinking`, where render() is not given others.
        """
        self._name, self._variables = name, variables or {}
        if reserved := [name for name in RESERVED if name in self._variables]:
            raise PromptError(f"chat_template_kwargs must not have {reserved[0]!r}")
        self._constants = {"bos_token": bos, "eos_token": eos}
        # What is around the model's thoughts; None: it is not known to think.
        self.thought = next((thought for thought in THOUGHTS if thought.begin in source), None)
        source = _MARK.sub(lambda found: found[1] + ("endif" if found[2] else "if true") + found[3], source)
        try:
            self._template = _environment().from_string(source)
        except Exception as error:
            raise self._failure(error) from error

    def render(self, messages: Messages, tools: Tools = (), options: Options = None, field: str = "") -> ChatText:
        """The prompt for `messages`, up to the beginning of the assistant's answer.

        messages: OpenAI's, with texts as contents and objects as the arguments of calls. tools: OpenAI's.
        options: further variables of the template, such as `enable_thinking`.
        field: of the last message, at whose end the prompt ends; empty: it ends where an answer begins. See begun().
        Raises PromptError if the template fails, refuses the messages, or does not show what is to be continued.
        """
        render = partial(self._open, field) if field else self._checked
        return ChatText(render, messages if self._takes_objects else _with_texts(messages), tools, options)

    def _checked(self, *given: Any) -> str:
        try:
            return self._render(*given)
        except Exception as error:  # a template is a program: it may raise anything
            raise self._failure(error) from error

    def _open(self, field: str, messages: Messages, tools: Tools, options: Options) -> str:
        (*before, last), mark = messages, _new_mark()
        if not isinstance(said := last.get(field) or "", str):
            raise PromptError(f"the {field} of the last message must be a text to be continued, not {said!r:.80}")
        last = {**last, field: said + mark}
        text = self._checked([*before, last], tools, {**(options or {}), "add_generation_prompt": False})
        text, found, _ = text.rpartition(mark)
        if not found:
            raise PromptError(f"{self._name}: the chat template leaves out the {field} that is to be continued")
        return text

    @functools.cached_property
    def supports_tools(self) -> bool:
        """Whether it tells the model about the tools."""
        return _TOOL in self._try(_CONVERSATION[:1])

    @functools.cached_property
    def has_json_calls(self) -> bool:
        """Whether calls are written as Hermes and Qwen write them: JSON between <tool_call> and </tool_call>."""
        _, _, call = self._try(_CONVERSATION).rpartition(f"{CALL}\n")
        return call.startswith(f'{{"name": "{_TOOL}", "arguments": {{"{_ARGUMENT}": "{_VALUE}"}}}}\n{END_OF_CALL}')

    @functools.cached_property
    def _takes_objects(self) -> bool:
        """Whether the arguments of calls are objects to it; otherwise, they are JSON as text."""
        try:
            prompt = self._render(_CONVERSATION, _TOOLS)
        except Exception as error:
            return not isinstance(error, TypeError)
        return f"{{'{_ARGUMENT}': '{_VALUE}'" not in prompt  # as Python writes it

    def _try(self, messages: Messages) -> str:
        """A prompt with tools; empty if the template fails."""
        try:
            return self._render(messages, _TOOLS)
        except Exception:
            return ""

    def _render(self, messages: Messages, tools: Tools, options: Options = None) -> str:
        # Some templates fail where `tools` is None, and others list the tools where it is defined.
        given = {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
        variables = {"add_generation_prompt": True, **self._variables, **(options or {})}
        prompt = self._template.render({**variables, **self._constants, **given})
        begun = prompt.rstrip()
        # A template that does not know the variable, or begins each answer with a thought.
        if variables.get("enable_thinking") is False and self.thought and begun.endswith(self.thought.begin):
            return f"{begun}\n\n{self.thought.end}\n\n"
        return prompt

    def _failure(self, error: Exception) -> PromptError:
        return PromptError(f"{self._name}: the chat template failed: {error}")


@functools.cache
def _environment() -> SandboxedEnvironment:
    """What templates are written for: the environment of transformers; but templates may append to lists."""
    environment = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: f"{datetime.now():{form}}"}
    return environment


def _raise(message: str) -> None:
    raise ValueError(message)


def _to_json(value: Any, **options: Any) -> str:
    """JSON without HTML's escapes. A filter's result is a list."""
    return json.dumps(value, **{"ensure_ascii": False, "default": list, **options})


def _with_texts(messages: Messages) -> Messages:
    """The messages with the arguments of calls as JSON."""

    def as_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**call, "function": {**call["function"], "arguments": _to_json(call["function"]["arguments"])}}

    return [
        {**message, "tool_calls": list(map(as_text, message["tool_calls"]))} if message.get("tool_calls") else message
        for message in messages
    ]

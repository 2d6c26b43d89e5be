"""Conversation: what a request of any API asks to continue. Pure."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from duo.errors import ApiError

Json = dict[str, object]  # an object
_MAX_JOINED = 64  # system messages, whose texts are copied each time
_NAME = re.compile("[A-Za-z0-9_.:/-]{1,128}")
MAX_OPTIONS = 2**19  # bytes of a request that are not its text
# How Claude Code's system prompt begins. It changes with each session, and all tokens after it would be read again.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:(?: *[\w-]+=[^;\s]*;)*\s*")


class ToolSchema(msgspec.Struct, kw_only=True):
    """The JSON schema of the arguments of a tool, under any API's name."""

    parameters: Json | None = None
    input_schema: Json | None = None  # Anthropic's
    mcp_schema: Json | None = msgspec.field(default=None, name="inputSchema")

    def given(self, name: str) -> Json | None:
        """The schema of the tool `name`, if there is one. Raises ApiError for two."""
        schemas = [one for one in (self.parameters, self.input_schema, self.mcp_schema) if one is not None]
        if any(other != schemas[0] for other in schemas):
            raise ApiError(400, f"tools: {name[:100]!r} has two schemas: send one as parameters or input_schema")
        return schemas[0] if schemas else None


class Function(ToolSchema):
    """A function that the model may call."""

    name: str
    description: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec passes on, for a name with anything that JSON or a grammar escapes."""
        if not _NAME.fullmatch(self.name):
            allowed = "1 to 128 letters, digits, and any of _ . : / -"
            raise ValueError(f"the name of a tool must have {allowed}, not {self.name[:40]!r}")

    @property
    def schema(self) -> Json:
        """The schema of the arguments. Raises ApiError if they are not an object."""
        given = self.given(self.name)
        schema = {"type": "object", **({"properties": {}} if given is None else given)}
        if schema["type"] != "object":
            raise ApiError(400, f"tools: the parameters of {self.name!r} must be a JSON schema of type object")
        return schema

    def plain(self) -> Json:
        """The tool for the chat template; complete, as templates expect it."""
        about = {"name": self.name, "description": self.description or "", "parameters": self.schema}
        return {"type": "function", "function": about}


class NamedTool(ToolSchema):
    """A tool of any type in the Responses and Messages APIs."""

    type: str | None = None
    name: str = ""
    description: str | None = None


@dataclass(slots=True)
class Conversation:
    """The messages so far, as chat templates expect them, and what the answer may be."""

    messages: list[Json] = field(default_factory=list)
    functions: Sequence[Function] = ()
    choice: str = "auto"  # whether functions are called: auto, none or required
    only: str | None = None  # the one that must be called
    is_parallel: bool = True  # whether several may be called at once
    variables: Json = field(default_factory=dict)  # of the template
    shows_tags: bool = False  # whether thoughts are part of the content
    continues: bool | None = None  # whether the answer continues the last message; None: if it is the assistant's
    opens: bool = True  # whether the template begins a new answer
    ignored: list[str] = field(default_factory=list)  # what was asked for and is not supported
    _n_joined: int = 0
    _n_arguments: int = 0  # bytes

    def say(self, role: str, content: str, **more: Any) -> None:
        """Add a message; the text of a system message is added to that of another one right before it."""
        last = self.messages[-1] if self.messages else {}
        if role == "system" and content and not (content := without_billing(content)):
            return
        if role == last.get("role") == "system" and not more:
            self._n_joined += 1
            if self._n_joined > _MAX_JOINED:
                raise ApiError(400, f"more than {_MAX_JOINED} system messages")
            last["content"] = f"{last['content']}\n\n{content}"
        else:
            self.messages.append({"role": role, "content": content, **more})

    def choose(self, choice: str, only: str | None, *, is_parallel: bool) -> None:
        """Whether functions are called. `only`: the one that must be, once."""
        self.choice, self.only = "required" if only is not None else choice, only
        self.is_parallel = is_parallel and only is None

    def sender(self, role: str) -> str:
        """Whose content the next message is: many clients send what a tool has read as a user's, after its result."""
        before = next((message["role"] for message in reversed(self.messages) if message["role"] != "system"), "")
        return "tool" if (before, role) == ("tool", "user") else role

    def use(self, tools: Iterable[NamedTool], kinds: Collection[str | None]) -> None:
        """Tools of these kinds are functions, and others are ignored. Raises ApiError for a wrong name or schema."""
        own = []
        for tool in tools:
            if tool.type in kinds:
                own.append({"name": tool.name, "description": tool.description, "parameters": tool.given(tool.name)})
            else:
                self.ignored.append(f"tool of type {tool.type}")
        try:
            self.functions = msgspec.convert(own, list[Function])
        except msgspec.ValidationError as error:
            raise ApiError(400, f"tools: {error}") from None

    def arguments(self, data: msgspec.Raw, name: str) -> Json:
        """The arguments of a call: a JSON object, or one in a string. Raises ApiError, also for too much in all."""
        self._n_arguments += len(bytes(data))
        if self._n_arguments > MAX_OPTIONS:  # megabytes of JSON take a second to decode
            raise ApiError(413, f"the arguments of tool_calls may have at most {MAX_OPTIONS} bytes")
        try:
            arguments = msgspec.json.decode(data, type=str | Json)
            if isinstance(arguments, str):
                arguments = msgspec.json.decode(arguments.strip() or "{}", type=Json)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            message = f"the arguments of {name[:100]!r} are not a JSON object: {error}"
            raise ApiError(400, f"tool_calls: {message}") from None
        return arguments

    def call(self, call_id: str, name: str, arguments: msgspec.Raw) -> None:
        """Add a call by the assistant, to its last message if that is the last one. Raises ApiError."""
        function = {"name": name, "arguments": self.arguments(arguments, name)}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.say("assistant", "")
        calls: Any = self.messages[-1].setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})


def effort_variables(effort: str | None) -> Json:
    """The variables of templates for an effort of reasoning, if a request has one."""
    if effort is None:
        return {}
    return {"enable_thinking": effort not in ("none", "minimal"), "reasoning_effort": effort}


def without_billing(text: str) -> str:
    """A system text without the line for Anthropic's bills, which is no instruction."""
    return _BILLING.sub("", text)


class TextPart(msgspec.Struct):
    """A part of a content, of any type."""

    type: str
    text: str = ""


def text_of(
    content: str | Sequence[TextPart] | None, sender: str, kinds: Collection[str] = ("text",), between: str = ""
) -> str:
    """The text of a content, whose parts of these `kinds` are texts. `sender`: see Conversation.

    What else is in a tool's result is named, and left out of an answer: it is in each later request, too. Raises
    ApiError for what else a user has sent.
    """
    if isinstance(content, str):
        return content
    found = []
    for part in content or ():
        if part.type in kinds:
            found.append(part.text)
        elif sender in ("tool", "function"):
            found.append(f"[{part.type[:40]}: left out, as this model reads only text]")
        elif sender != "assistant":
            raise ApiError(400, f"content of type {part.type[:40]!r} is not supported: this model reads only text")
    return between.join(found)

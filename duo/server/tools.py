"""Tools: the functions that the model may call in a chat, and the grammar of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from duo.link.guard import ApiError
from duo.llama.chat_template import CALL, END_OF_CALL, END_OF_THOUGHT, THINK
from duo.llama.grammar import schemas_grammar

MOST_TOOLS = 256

FunctionName = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,128}(?!\n)$")
]  # nothing that JSON or GBNF escapes


class Function(msgspec.Struct):
    """A function that the model may call. `parameters`: the JSON schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments. Raises ApiError if they are not an object."""
        parameters = {"properties": {}} if self.parameters is None else self.parameters
        schema = {"type": "object", **parameters}
        if schema["type"] != "object":
            raise ApiError(400, f"tools: the parameters of {self.name!r} must be a JSON schema of type object")
        return schema


class Tool(msgspec.Struct):
    """A tool."""

    function: Function
    type: Literal["function"] = "function"

    def plain(self) -> dict[str, Any]:
        """The tool for the chat template; complete, as templates expect it."""
        function = self.function
        described = {"name": function.name, "description": function.description or "", "parameters": function.schema}
        return {"type": self.type, "function": described}


class NamedFunction(msgspec.Struct):
    """`tool_choice.function`."""

    name: str


class NamedTool(msgspec.Struct):
    """A `tool_choice` that names the function to call."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer may have."""

    functions: Sequence[Function]
    is_required: bool = False  # the answer is a call; otherwise, it may be text, or text and calls
    is_parallel: bool = True  # there may be several

    @classmethod
    def of(cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, *, is_parallel: bool) -> Calls | None:
        """The calls that a request allows; None: none. Raises ApiError."""
        functions = [tool.function for tool in tools or ()]
        if not functions and choice not in (None, "auto", "none"):
            raise ApiError(400, "tool_choice needs tools")
        if len({function.name for function in functions}) < len(functions):
            raise ApiError(400, "tools: each function must have a name of its own")
        if not functions or choice == "none":
            return None
        if isinstance(choice, NamedTool):
            name = choice.function.name
            functions = [function for function in functions if function.name == name]
            if not functions:
                raise ApiError(400, f"tool_choice: there is no function {name[:100]!r} in tools")
            return cls(functions, is_required=True, is_parallel=False)
        return cls(functions, choice == "required", is_parallel)

    def grammar(self, thinks: bool | None) -> str:
        """GBNF of the answer. `thinks`: whether it begins with a thought; None: the model has none.

        Raises UsageError for parameters that are not a supported schema, and BusyError. Blocks: see schema_grammar().
        """
        schemas = [function.schema for function in self.functions]
        arguments = schemas_grammar(msgspec.json.encode(schemas).decode(), "the parameters of the tools")
        names = " | ".join(
            f'"\\"{function.name}\\", \\"arguments\\": " s{i}-root' for i, function in enumerate(self.functions)
        )
        answer = "call" if self.is_required else "text-0"
        gap = '"\\n"? "\\n"? ' if self.is_required else ""
        begins = {None: answer, True: "thought-0", False: f'{answer} | "{THINK}" thought-0'}
        more = ' ("\\n" call)?' if self.is_parallel else ""
        rules = [
            f"root ::= {begins[thinks]}",
            f'call ::= "{CALL}" called',
            f'called ::= "\\n{{\\"name\\": " ({names}) "}}\\n{END_OF_CALL}"{more}',
        ]
        if thinks is not None:
            rules += until("thought", END_OF_THOUGHT, gap + answer, may_end=not self.is_required)
        if not self.is_required:
            rules += until("text", CALL, "called", may_end=True)
        return "\n".join([*rules, arguments])


def until(name: str, literal: str, then: str, *, may_end: bool) -> list[str]:
    """GBNF rules of any text up to and including the first `literal`, followed by `then`.

    They are named `name`-0, the first, to `name`-n: the number of characters of the literal that the text ends with.
    `may_end`: the text may also end before the literal.
    """
    rules = []
    for n in range(len(literal)):
        after = {character: _length_after(literal, n, character) for character in sorted(set(literal))}
        after = {character: length for character, length in after.items() if length}
        options = [
            f'"{character}" {f"{name}-{length}" if length < len(literal) else then}'
            for character, length in after.items()
        ]
        options.append(f"[^{''.join(after)}] {name}-0")
        if may_end:
            options.append('""')
        rules.append(f"{name}-{n} ::= {' | '.join(options)}")
    return rules


def _length_after(literal: str, n: int, character: str) -> int:
    """The length of the longest beginning of `literal` that its first `n` characters and `character` end with."""
    text = literal[:n] + character
    return next(length for length in range(len(text), -1, -1) if text.endswith(literal[:length]))

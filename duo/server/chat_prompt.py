"""The prompt of a chat, and the calls of tools that its answer may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from duo.engine.engine import Engine
from duo.llama.chat_template import CALL, END_OF_CALL, RESERVED, THOUGHTS, ChatTemplate, Thought
from duo.llama.grammar import schema_grammar
from duo.server.answer_parser import n_begun
from duo.server.api_error import ApiError
from duo.server.conversation import Conversation, Function
from duo.server.parse_request import check_text


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a chat. `thinks`: whether it ends inside a thought; None: the model is not known to think."""

    text: str
    thinks: bool | None
    thought: Thought
    calls: "Calls | None"  # None: the answer has none

    @classmethod
    def of(cls, conversation: Conversation, engine: Engine) -> "ChatPrompt":
        """Raises ApiError if the chat is invalid, and PromptError if the model's template refuses it."""
        if not conversation.messages:
            raise ApiError(400, "messages must not be empty")
        model, n_ctx = engine.slot.target, engine.slot.n_ctx
        calls = Calls.of(conversation)
        messages, variables = conversation.messages, conversation.variables
        tools = [function.plain() for function in conversation.functions]
        if reserved := [name for name in RESERVED if name in variables]:
            raise ApiError(400, f"chat_template_kwargs must not have {reserved[0]!r}")
        # A template may copy each text often. Nothing else in a message is long.
        check_text(msgspec.json.encode([messages, tools, variables]).decode(), model, n_ctx, is_prompt=False)
        template = model.tool_template if tools else model.chat_template
        if tools:
            _check_tools(template, parses=calls is not None)
        prompt = template.render(messages, tools, variables)
        check_text(prompt, model, n_ctx)
        thought = template.thought
        thinks = prompt.rstrip().endswith(thought.begin) if thought is not None else None
        return cls(prompt, thinks, thought or THOUGHTS[0], calls)


def _check_tools(template: ChatTemplate, *, parses: bool) -> None:
    """Raise ApiError if the model cannot be told about tools, or calls them in a format that is not parsed."""
    if not template.supports_tools:
        message = "this model's chat template has no tools: use a model that was trained for them, such as Qwen3"
        raise ApiError(400, f"{message}, or ask for JSON with response_format")
    if parses and not template.has_json_calls:
        message = "this model's chat template writes tool calls in a format that duo does not parse"
        raise ApiError(400, f"{message}: it parses that of Hermes and Qwen, JSON between <tool_call> and </tool_call>")


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer may have."""

    functions: Sequence[Function]
    is_required: bool = False  # the answer is a call; otherwise, it may be text, or text and calls
    is_parallel: bool = True  # there may be several

    @classmethod
    def of(cls, conversation: Conversation) -> "Calls | None":
        """The calls that an answer may have; None: none. Raises ApiError."""
        functions, only = conversation.functions, conversation.only
        if not functions and conversation.choice == "required":
            raise ApiError(400, "tool_choice needs tools")
        if len({function.name for function in functions}) < len(functions):
            raise ApiError(400, "tools: each function must have a name of its own")
        if not functions or conversation.choice == "none":
            return None
        if only is not None:
            functions = [function for function in functions if function.name == only]
            if not functions:
                raise ApiError(400, f"tool_choice: there is no function {only[:100]!r} in tools")
        return cls(functions, conversation.choice == "required", conversation.is_parallel)

    def grammar(
        self, thinks: bool | None, thought: Thought = THOUGHTS[0], content: Mapping[str, object] | None = None
    ) -> str:
        """GBNF of the answer. `thinks`: whether it begins inside a `thought`; None: the model has none.

        `content`: the JSON schema of an answer without calls; None: it is text. Raises UsageError for parameters that
        are not a supported schema, and BusyError. Blocks: see schema_grammar().
        """
        schemas = [*(function.schema for function in self.functions), *([] if content is None else [content])]
        arguments = schema_grammar(msgspec.json.encode(schemas).decode(), "the parameters of the tools", several=True)
        names = " | ".join(
            f'"\\"{function.name}\\", \\"arguments\\": " s{i}-root' for i, function in enumerate(self.functions)
        )
        is_free = not self.is_required and content is None  # text, with calls or without
        answer = "text-0" if is_free else "call" if self.is_required else f"(call | s{len(self.functions)}-root)"
        gap = "" if is_free else '"\\n"? "\\n"? '
        begins = {None: answer, True: "thought-0", False: f'{answer} | "{thought.begin}" thought-0'}
        more = ' ("\\n" call)?' if self.is_parallel else ""
        rules = [
            f"root ::= {begins[thinks]}",
            f'call ::= "{CALL}" called',
            f'called ::= "\\n{{\\"name\\": " ({names}) "}}\\n{END_OF_CALL}"{more}',
        ]
        if thinks is not None:
            rules += until("thought", thought.end, gap + answer, may_end=is_free)
        if is_free:
            rules += until("text", CALL, "called", may_end=True)
        return "\n".join([*rules, arguments])


def until(name: str, literal: str, then: str, *, may_end: bool) -> list[str]:
    """GBNF rules of any text up to and including the first `literal`, followed by `then`.

    They are named `name`-0, the first, to `name`-n: the number of characters of the literal that the text ends with.
    `may_end`: the text may also end before the literal.
    """
    rules = []
    for n in range(len(literal)):
        after = {one: length for one in sorted({*literal}) if (length := n_begun(literal[:n] + one, literal))}
        options = [f'"{one}" {then if length == len(literal) else f"{name}-{length}"}' for one, length in after.items()]
        others = "".join(f"\\{one}" if one in "[]^" else one for one in after)
        options += [f"[^{others}] {name}-0", *(['""'] if may_end else [])]
        rules.append(f"{name}-{n} ::= {' | '.join(options)}")
    return rules

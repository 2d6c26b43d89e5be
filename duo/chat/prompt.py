"""The prompt of a chat, and the calls of tools that its answer may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from duo.chat.conversation import Conversation, Function
from duo.chat.parser import AnswerFormat
from duo.engine.engine import Engine
from duo.errors import ApiError
from duo.llama.chat_template import CALL, END_OF_CALL, RESERVED, THOUGHTS, ChatTemplate, Thought, begun
from duo.llama.grammar import pattern, schemas_grammar, until
from duo.llama.model import Model

LARGE = 2**14  # bytes whose processing may take longer than a few milliseconds
_MAX_TEXT = 2**20  # bytes that are tokenised for one request, or
_MAX_PER_TOKEN = 8  # so many for each token of the context, if that is more
_BYTES_PER_TOKEN = 4  # of usual texts
# llama.cpp's SentencePiece copies all tokens so far for each character that the vocabulary does not have: 2 s.
_MAX_COPIES = 2**36
_PARAMETERS = "the parameters of the tools"


class ChatPrompt(NamedTuple):
    """The prompt of a chat, and what its answer may have."""

    text: str
    format: AnswerFormat = AnswerFormat()
    calls: "Calls | None" = None  # None: the answer has none
    is_begun: bool = False  # whether its last message is the beginning of the answer

    @classmethod
    def of(cls, conversation: Conversation, engine: Engine, *, is_answered: bool = True) -> "ChatPrompt":
        """Raises ApiError if the chat is invalid, and PromptError if the model's template refuses it.

        `is_answered`: otherwise, the prompt is only counted, and its last message may be one that cannot be continued.
        """
        if not conversation.messages:
            raise ApiError(400, "messages must not be empty")
        model, n_ctx = engine.slot.target, engine.slot.n_ctx
        calls = Calls.of(conversation)
        messages, variables = conversation.messages, conversation.variables
        tools = [function.plain() for function in conversation.functions]
        if reserved := [name for name in RESERVED if name in variables]:
            raise ApiError(400, f"chat_template_kwargs must not have {reserved[0]!r}")
        # A template may copy each text often. Nothing else in a message is long.
        check_text(msgspec.json.encode([messages, tools, variables]).decode(), model, n_ctx, is_json=True)
        template = model.tool_template if tools else model.chat_template
        if tools:
            _check_tools(template, parses=calls is not None)
        is_new = conversation.continues is False or (not is_answered and messages[-1].get("tool_calls"))
        field = "" if is_new else begun(messages)
        if is_answered:
            _check_begun(conversation, field, template.thought)
        prompt = template.render(messages, tools, {"add_generation_prompt": conversation.opens, **variables}, field)
        check_text(prompt, model, n_ctx)
        has_tools, shows_tags = calls is not None, conversation.shows_tags
        form = AnswerFormat.after(prompt, template.thought, has_tools=has_tools, shows_tags=shows_tags)
        if form.thinks is not None and field and messages[-1].get(field):
            # A content that is begun has no room for a thought.
            form = form._replace(thinks=True if field == "reasoning_content" else None)
        return cls(prompt, form, calls, bool(field))


def _check_begun(conversation: Conversation, field: str, thought: Thought | None) -> None:
    """Raise ApiError if the answer that the last message begins in `field` cannot be continued as it is wanted."""
    last, said = conversation.messages[-1], "the answer that the last message begins"
    if not field:
        if conversation.continues:
            raise ApiError(400, "continue_final_message: the last message is not one of the assistant")
        return
    text = str(last["content"])
    is_thought = thought is not None and text.lstrip().startswith(thought.begin) and thought.end not in text
    if is_thought or (conversation.functions and text.rfind(CALL) > text.rfind(END_OF_CALL)):
        raise ApiError(400, f"{said} ends inside of a thought or a call: send a thought as reasoning_content")
    if conversation.choice == "required":
        raise ApiError(400, f"{said} cannot have to be a call: send another tool_choice")
    thinks = conversation.variables.get("enable_thinking") is True and thought is not None
    if thinks and field == "content" and not last.get("reasoning_content"):
        raise ApiError(400, f"{said} has no room for a thought: turn thinking off")


def _check_tools(template: ChatTemplate, *, parses: bool) -> None:
    """Raise ApiError if the model cannot be told about tools, or calls them in a format that is not parsed."""
    if not template.supports_tools:
        message = "this model's chat template has no tools: use a model that was trained for them, such as Qwen3"
        raise ApiError(400, f"{message}, or ask for an answer in JSON, without tools")
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
        """Lark of the answer. `thinks`: whether it begins inside a `thought`; None: the model has none.

        `content`: the JSON schema of an answer without calls; None: it is text. Raises UsageError for parameters that
        are not a supported schema, and BusyError. Blocks: see schemas_grammar().
        """
        if content is not None:  # for a message about it alone
            schemas_grammar([content], "the schema")
        functions, may_be_text = self.functions, not self.is_required and content is None
        schemas = [*(one.schema for one in functions), *([] if content is None else [content])]
        names = " | ".join(rf'"\"{one.name}\", \"arguments\": " s{i}' for i, one in enumerate(functions))
        more = rf' ("\n{CALL}" called)?' if self.is_parallel else ""
        rules = [rf'called: "\n{{\"name\": " ({names}) "}}\n{END_OF_CALL}"{more}']
        if may_be_text:
            rules += ["answer: CALL called | NO_CALL", *until("CALL", CALL)]
        else:
            rules.append(f'answer: "{CALL}" called' + ("" if self.is_required else f" | s{len(functions)}"))
        first = "answer"
        if thinks is not None:
            after = "answer | NO_THOUGHT" if may_be_text else r'"\n"? "\n"? answer'
            rules += [f"thought: THOUGHT {after}", *until("THOUGHT", thought.end)]
            first = "thought" if thinks else f'answer | "{thought.begin}" thought'
        if thinks is False and may_be_text:  # a text that begins as a thought is one
            rules += [f"PLAIN: /(?s:.*)/ & ~/{pattern(thought.begin)}(?s:.*)/"]
            rules += ["PLAIN_CALL: CALL & PLAIN", "PLAIN_TEXT: NO_CALL & PLAIN"]
            first = f'PLAIN_CALL called | PLAIN_TEXT | "{thought.begin}" thought'
        return schemas_grammar(schemas, _PARAMETERS, [f"start: {first}", *rules], n_lenient=len(functions))


def too_long(n_tokens: int, n_ctx: int, about: str = "") -> ApiError:
    """The error for a prompt that leaves no room for a token, in the words that clients know: they shorten the chat."""
    message = f"prompt is too long: {about}{n_tokens} tokens > {min(n_ctx, n_tokens - 1)} maximum."
    return ApiError(400, f"{message} This model's maximum context length is {n_ctx} tokens", "context_length_exceeded")


def check_text(text: str, model: Model, n_ctx: int, *, is_prompt: bool = True, is_json: bool = False) -> None:
    """Raise ApiError if `text` takes too long to tokenise, or is a prompt, or its JSON, that cannot fit `n_ctx`."""
    n_bytes = len(text.encode("utf-8", "replace"))
    most = max(_MAX_TEXT, _MAX_PER_TOKEN * n_ctx)
    if is_prompt and n_bytes > (most if is_json else min(most, n_ctx * model.longest_token)):
        raise too_long(max(n_ctx + 1, n_bytes // _BYTES_PER_TOKEN), n_ctx, "about ")
    if n_bytes > most:
        raise ApiError(400, f"the text has {n_bytes} bytes: at most {most} can be tokenised in one request")
    if n_bytes > LARGE and (n_unknown := model.n_unknown(text)) * n_bytes > _MAX_COPIES:
        message = f"{n_unknown} characters of the text are not in the vocabulary: a text of {n_bytes} bytes may have"
        raise ApiError(400, f"{message} at most {_MAX_COPIES // n_bytes} of them")

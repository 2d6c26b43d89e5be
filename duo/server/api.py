"""The bodies of requests: OpenAI's, with llama-server's additions. Pure. The configs check the numbers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from duo.chat.conversation import (
    Conversation,
    Function,
    Json,
    TextPart,
    ToolSchema,
    effort_variables,
    text_of,
    without_billing,
)
from duo.config import MAX_CANDIDATES, MAX_LOGPROBS
from duo.errors import ApiError
from duo.server.schemas import FormFields

MAX_BIASED = 1024  # tokens with a logit_bias
MAX_TOKENS = 2**20  # in one request
MAX_CHOICES = 128  # of one request: prompts × n

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_CANDIDATES)]
LogprobCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]
StopString = Annotated[str, msgspec.Meta(max_length=1024)]

# OpenAI's object, or llama-server's array, which may name texts and forbid tokens
BiasedText = Annotated[str, msgspec.Meta(max_length=64)]
Bias = float | bool
LogitBias = dict[BiasedText, Bias] | Annotated[list[tuple[int | BiasedText, Bias]], msgspec.Meta(max_length=MAX_BIASED)]


def given(fields: msgspec.Struct, **changes: object) -> Json:
    """The fields that are not None after these changes."""
    return {name: value for name, value in (asdict(fields) | changes).items() if value is not None}


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class DuoOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a text is drafted. None: as the lead's options say."""

    schedule: str | None = None
    lookup: bool | None = None
    n_draft: Count | None = None
    sources: bool = False  # whether each chunk of a stream tells where its characters come from


class SharedFields(FormFields):
    """The fields of all APIs that write texts. None: the server's default."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stream: bool | None = None
    cache_prompt: bool | None = None  # whether tokens that are in a cache already are used
    id_slot: int | None = None  # whose text is continued; None or -1: of which the prompt has most
    speculative_n_max: Count | None = msgspec.field(default=None, name="speculative.n_max")
    # True: each chunk of a stream tells where its characters come from. Or how the text is drafted.
    duo: bool | DuoOptions | None = None

    def shared(self) -> dict[str, Any]:
        """These fields."""
        return {name: getattr(self, name) for name in SharedFields.__struct_fields__}


class TextBody(SharedFields):
    """The fields of both chats and completions."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    samplers: Annotated[list[str], msgspec.Meta(max_length=64)] | None = None
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=32)] | None = None
    logit_bias: LogitBias | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    n_cmpl: int | None = None  # llama-server's name for it
    ignore_eos: bool | None = None
    n_probs: LogprobCount | None = None
    functions: list[msgspec.Raw] | None = None
    echo: bool | None = None
    suffix: str | None = None

    def options(self) -> "TextBody":
        """How the text is written."""
        return self

    def n_logprobs(self) -> int | None:
        """See GenerationConfig; llama-server's field. Raises ApiError."""
        return self.n_probs or None


_TEXTS = ("text", "input_text", "output_text")  # some clients have the names of Responses in chats, too


class _GivenFunction(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")  # OpenAI's are JSON in a string; not decoded: there may be much


class _GivenCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _GivenFunction


class ChatMessage(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[_GivenCall] | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None

    def plain(self, before: Conversation) -> Json:
        """The message for the chat template, after those `before`. Raises ApiError for what is not supported."""
        content = text_of(self.content, before.sender(self.role), _TEXTS)  # maybe empty: templates concatenate it
        role = "system" if self.role == "developer" else self.role  # OpenAI's newer name for it
        content = without_billing(content) if role == "system" else content
        calls = []
        for call in self.tool_calls or ():
            name = call.function.name
            function = {"name": name, "arguments": before.arguments(call.function.arguments, name)}
            calls.append(given(call, function=function))
        return given(self, role=role, content=content, tool_calls=calls or None)


class Tool(ToolSchema):
    """A tool, or a `tool_choice` that names the function to call. Its schema may be beside the function."""

    function: Function
    type: Literal["function"] = "function"

    def whole(self) -> Function:
        """The function with its schema. Raises ApiError."""
        beside = self.given(self.function.name)
        return self.function if beside is None else replace(self.function, input_schema=beside)


class ChatBody(TextBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=4096)] = msgspec.field(default_factory=list)
    tools: Annotated[list[Tool], msgspec.Meta(max_length=256)] | None = None
    tool_choice: Literal["auto", "none", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Json | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None  # vLLM's, llama-server's
    add_generation_prompt: bool | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None

    def n_logprobs(self) -> int | None:
        """As in TextBody."""
        if not self.logprobs and self.top_logprobs is not None:
            raise ApiError(400, "top_logprobs needs logprobs: true")
        return (self.top_logprobs or 0) if self.logprobs else super().n_logprobs()

    def conversation(self) -> Conversation:
        """What it asks to continue. Raises ApiError."""
        choice, continues = self.tool_choice or "auto", self.continue_final_message
        if continues and self.add_generation_prompt:
            raise ApiError(400, "continue_final_message and add_generation_prompt exclude each other: send one")
        if continues is None and self.add_generation_prompt:
            continues = False
        found = Conversation(
            functions=[tool.whole() for tool in self.tools or ()],
            variables=effort_variables(self.reasoning_effort) | (self.chat_template_kwargs or {}),
            shows_tags=self.reasoning_format == "none",
            continues=None if continues is None else bool(continues),
            opens=self.add_generation_prompt is not False,
        )
        parallel = self.parallel_tool_calls is not False
        if isinstance(choice, Tool):
            found.choose("required", choice.function.name, is_parallel=parallel)
        else:
            found.choose(choice, None, is_parallel=parallel)
        for message in self.messages:
            found.messages.append(message.plain(found))
        return found


class CompletionBody(TextBody, kw_only=True):
    """POST /v1/completions."""

    # A text or tokens, or a list of those; llama-server also takes texts among the tokens.
    prompt: str | Annotated[list[int | str | list[int | str]], msgspec.Meta(max_length=MAX_TOKENS)]
    tools: list[msgspec.Raw] | None = None
    logprobs: LogprobCount | bool | None = None

    def n_logprobs(self) -> int | None:
        """As in TextBody; true is 1, as in llama-server."""
        return super().n_logprobs() if self.logprobs is None or self.logprobs is False else int(self.logprobs)

    def conversation(self) -> Conversation:
        """A completion has none."""
        return Conversation()


class LlamaBody(CompletionBody):
    """POST /completion, llama-server's own API."""

    return_tokens: bool | None = None
    timings_per_token: bool | None = None


class SlotBody(msgspec.Struct):
    """POST /slots/ID."""

    filename: str


class PropsBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /props."""


class TokenizeBody(ChatBody):
    """POST /tokenize: llama-server's fields, or vLLM's for a prompt or a chat."""

    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    prompt: str | None = None
    add_special_tokens: bool | None = None  # for a prompt; true if it is not given, as there
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: Annotated[list[int], msgspec.Meta(max_length=MAX_TOKENS)]
    model: str | None = None

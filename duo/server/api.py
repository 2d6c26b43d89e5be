"""The bodies of requests: OpenAI's, with llama-server's additions. Pure. The configs check the numbers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import asdict

from duo.config import MAX_CANDIDATES, MAX_LOGPROBS
from duo.server.api_error import ApiError
from duo.server.conversation import Conversation, Function, Json, arguments_of, check_arguments, effort_variables

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


class JsonSchema(msgspec.Struct):
    """The schema of a `response_format`."""

    schema: Json | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`; llama-server also accepts a schema with json_object."""

    type: str = "text"
    json_schema: JsonSchema | None = None
    schema: Json | None = None


class DuoOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a text is drafted. None: as the lead's options say."""

    schedule: str | None = None
    lookup: bool | None = None
    n_draft: Count | None = None
    sources: bool = False  # whether each chunk of a stream tells where its characters come from


class SharedFields(msgspec.Struct):
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
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=32)] | None = None
    logit_bias: LogitBias | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    n_cmpl: int | None = None  # llama-server's name for it
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    json_schema: Json | None = None
    ignore_eos: bool | None = None
    n_probs: LogprobCount | None = None
    functions: list[msgspec.Raw] | None = None
    echo: bool | None = None
    suffix: str | None = None


class _ContentPart(msgspec.Struct):
    type: str
    text: str = ""


class _GivenFunction(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")  # OpenAI's are JSON in a string; not decoded: there may be much

    def plain(self) -> Json:
        """For the chat template. Raises ApiError if the arguments are not a JSON object."""
        return {"name": self.name, "arguments": arguments_of(bytes(self.arguments), self.name)}


class _GivenCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _GivenFunction


class ChatMessage(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[_ContentPart] | None = None
    name: str | None = None
    tool_calls: list[_GivenCall] | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None

    def plain(self) -> Json:
        """The message for the chat template. Raises ApiError if it is not text, or has an invalid call."""
        content = self.content or ""  # templates concatenate it
        if not isinstance(content, str):
            if other := [part.type for part in content if part.type != "text"]:
                raise ApiError(400, f"content of type {other[0][:40]!r} is not supported: only text is")
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role  # OpenAI's newer name for it
        calls = [given(call, function=call.function.plain()) for call in self.tool_calls or ()]
        return given(self, role=role, content=content, tool_calls=calls or None)


class Tool(msgspec.Struct):
    """A tool, or a `tool_choice` that names the function to call."""

    function: Function
    type: Literal["function"] = "function"


class ChatBody(TextBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=4096)] = []
    tools: Annotated[list[Tool], msgspec.Meta(max_length=256)] | None = None
    tool_choice: Literal["auto", "none", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Json | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None

    def options(self) -> TextBody:
        """How the text is written."""
        return self

    def conversation(self) -> Conversation:
        """What it asks to continue. Raises ApiError."""
        calls = (call for message in self.messages for call in message.tool_calls or ())
        check_arguments(len(bytes(call.function.arguments)) for call in calls)
        choice, tools = self.tool_choice or "auto", self.tools or ()
        is_named = isinstance(choice, Tool)
        return Conversation(
            [message.plain() for message in self.messages],
            [tool.function for tool in tools],
            "required" if isinstance(choice, Tool) else choice,
            choice.function.name if isinstance(choice, Tool) else None,
            self.parallel_tool_calls is not False and not is_named,
            effort_variables(self.reasoning_effort) | (self.chat_template_kwargs or {}),
            self.reasoning_format == "none",
        )


class CompletionBody(TextBody):
    """POST /v1/completions."""

    # A text or tokens, or a list of those; llama-server also takes texts among the tokens.
    prompt: str | Annotated[list[int | str | list[int | str]], msgspec.Meta(max_length=MAX_TOKENS)] = ""
    tools: list[msgspec.Raw] | None = None
    logprobs: LogprobCount | bool | None = None

    def options(self) -> TextBody:
        """How the text is written."""
        return self

    def conversation(self) -> None:
        """A completion has none."""


class SlotBody(msgspec.Struct):
    """POST /slots/ID."""

    filename: str


class TokenizeBody(msgspec.Struct):
    """POST /tokenize: llama-server's fields, or vLLM's for a prompt or a chat."""

    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=4096)] | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=256)] | None = None
    chat_template_kwargs: Json | None = None
    add_special_tokens: bool | None = None  # for a prompt; true if it is not given, as there
    return_token_strs: bool | None = None
    model: str | None = None


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: Annotated[list[int], msgspec.Meta(max_length=MAX_TOKENS)]
    model: str | None = None

"""The API's requests: OpenAI's, with llama-server's additions. Pure: JSON in, values out."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec

from duo.config import MAX_LOGPROBS, GenerationConfig, StopConfig
from duo.errors import UsageError
from duo.link.guard import ApiError
from duo.llama.grammar import checked, schema_grammar
from duo.llama.model import Model
from duo.server.bias import LogitBias, token_biases
from duo.server.messages import ChatMessage
from duo.server.tools import MOST_TOOLS, Tool, ToolChoice

_MAX_MESSAGES = 4096
_MAX_STOPS = 32
_MIN_TEMPERATURE = 1e-6  # anything below is 0

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Length = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
LogprobCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]
StopString = Annotated[str, msgspec.Meta(max_length=1024)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`; llama-server also accepts a schema with json_object."""

    type: str = "text"
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class TextRequestBody(msgspec.Struct):
    """The fields of both chats and completions. None: the server's default."""

    model: str | None = None
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    n_predict: Length | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    top_p: Share | None = None
    top_k: Length | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] | None = None
    repeat_last_n: Length | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=_MAX_STOPS)] | None = None
    logit_bias: LogitBias | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    ignore_eos: bool | None = None
    n_probs: LogprobCount | None = None
    functions: list[msgspec.Raw] | None = None
    echo: bool | None = None
    suffix: str | None = None
    duo: bool | None = None  # whether each chunk of a stream tells where its characters come from

    @property
    def has_schema(self) -> bool:
        """Whether there may be a JSON schema to convert, which takes a while."""
        form = self.response_format
        return self.json_schema is not None or (form is not None and form.type != "text")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with `usage`."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def n_logprobs(self) -> int | None:
        """See GenerationConfig. With llama-server's `n_probs`, 0 is none. Raises ApiError."""
        return self.n_probs or None


class ChatRequest(TextRequestBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=_MAX_MESSAGES)] = []
    tools: Annotated[list[Tool], msgspec.Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None

    @property
    def has_schema(self) -> bool:
        """See TextRequestBody."""
        return bool(self.tools) or super().has_schema

    @property
    def size(self) -> int:
        """About how many characters the template is given."""
        others = msgspec.json.encode((self.tools, self.chat_template_kwargs))
        return sum(message.size for message in self.messages) + len(others)

    @property
    def n_logprobs(self) -> int | None:
        """See TextRequestBody."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise ApiError(400, "top_logprobs needs logprobs: true")
        return super().n_logprobs


class CompletionRequest(TextRequestBody):
    """POST /v1/completions."""

    prompt: str | list[int | str] = ""
    tools: list[msgspec.Raw] | None = None
    logprobs: LogprobCount | bool | None = None

    @property
    def n_logprobs(self) -> int | None:
        """See TextRequestBody. As in llama-server, true is 1, and false is none."""
        if self.logprobs is None or self.logprobs is False:
            return super().n_logprobs
        return int(self.logprobs)


class TokenizeRequest(msgspec.Struct):
    """POST /tokenize."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Defaults:
    """The server's defaults."""

    config: GenerationConfig
    random_seed: bool  # a new seed for each text


def generation_config(
    request: TextRequestBody,
    prompt: list[int],
    defaults: Defaults,
    model: Model,
    n_ctx: int,
    calls: Callable[[], str] | None = None,
) -> GenerationConfig:
    """The options of a text; `calls`: the grammar of an answer with tools. Raises ApiError, or BusyError.

    Blocks if the request has a JSON schema.
    """
    _check_supported(request)
    if not prompt:
        raise ApiError(400, "the prompt has no tokens")
    if len(prompt) > n_ctx:
        message = f"the prompt has {len(prompt)} tokens, the context {n_ctx}"
        raise ApiError(400, message, code="context_length_exceeded")
    temp = request.temperature
    options: dict[str, Any] = {
        "temp": 0.0 if temp is not None and temp < _MIN_TEMPERATURE else temp,
        "top_p": request.top_p,
        "top_k": request.top_k and max(0, request.top_k),  # -1 is off
        "min_p": request.min_p,
        "typical": request.typical_p,
        "repeat_penalty": request.repeat_penalty,
        "repeat_last_n": n_ctx if request.repeat_last_n == -1 else request.repeat_last_n,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": token_biases(request.logit_bias, model) if request.logit_bias else None,
    }
    config = defaults.config
    sampling = replace(config.sampling, **{name: value for name, value in options.items() if value is not None})
    seed = request.seed
    if seed is None:
        seed = -1 if defaults.random_seed else config.sampling.seed
    return GenerationConfig(
        replace(sampling, seed=secrets.randbits(32) if seed == -1 else seed % 2**64),
        _stop(request, config.stop),
        _grammar(request, calls) or config.grammar,
        n_logprobs=request.n_logprobs,
    )


def _check_supported(request: TextRequestBody) -> None:
    if request.n not in (None, 1):
        raise ApiError(400, f"n must be 1, not {request.n}: several choices are not supported")
    if isinstance(request, CompletionRequest) and request.tools:
        raise ApiError(400, "tools are not supported here: use /v1/chat/completions")
    if request.functions:
        raise ApiError(400, "functions is not supported: send tools")
    # An explicit False is the default.
    for name in ("echo", "suffix"):
        if getattr(request, name):
            raise ApiError(400, f"{name} is not supported")


def _stop(request: TextRequestBody, default: StopConfig) -> StopConfig:
    lengths = (request.max_completion_tokens, request.max_tokens, request.n_predict)
    n_predict = next((length for length in lengths if length is not None), default.n_predict)
    stops = [stop for stop in ([request.stop] if isinstance(request.stop, str) else request.stop or []) if stop]
    ignore_eos = default.ignore_eos if request.ignore_eos is None else request.ignore_eos
    return StopConfig(n_predict, (*default.stop_strings, *stops), ignore_eos)


def _grammar(request: TextRequestBody, calls: Callable[[], str] | None) -> str | None:
    """The grammar of the text. Raises ApiError if it is given more than once, or is too large or unsupported."""
    schemas = [request.json_schema] if request.json_schema is not None else []
    form = request.response_format
    if form is not None and form.type in ("json_object", "json_schema"):
        schemas.append((form.json_schema.schema if form.json_schema is not None else form.schema) or {})
    elif form is not None and form.type != "text":
        raise ApiError(400, f"unknown response_format {form.type!r} (available: text, json_object, json_schema)")
    if len(schemas) + (request.grammar is not None) + (calls is not None) > 1:
        raise ApiError(400, "grammar, json_schema, response_format and tools exclude each other: send one")
    try:
        if calls is not None:
            return calls()
        if schemas:
            return schema_grammar(msgspec.json.encode(schemas[0]).decode(), "the schema")
        if request.grammar is not None:
            checked(request.grammar)
        return request.grammar
    except UsageError as error:
        raise ApiError(400, str(error)) from None

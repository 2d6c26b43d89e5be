"""Receives the body of a request and parses it, within limits, and tells the client about misspelt names of fields."""

import difflib
import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

import anyio
import msgspec
from starlette.requests import Request

from duo.errors import BusyError
from duo.http.listener import MAX_CONNECTIONS
from duo.llama.model import Model
from duo.server.api import SharedFields, TextBody
from duo.server.api_error import NO_EFFECT, WARNING, ApiError
from duo.server.conversation import MAX_OPTIONS

log = logging.getLogger("duo.server")

MAX_BODY = 8 * 1024 * 1024  # bytes
LARGE = 2**14  # bytes whose processing may take longer than a few milliseconds
_MAX_TEXT = 2**20  # bytes that are tokenised for one request, or
_MAX_PER_TOKEN = 8  # so many for each token of the context, if that is more
_BYTES_PER_TOKEN = 4  # of usual texts
# llama.cpp's SentencePiece copies all tokens so far for each character that the vocabulary does not have: 2 s.
_MAX_COPIES = 2**36
MAX_SLOW = MAX_CONNECTIONS // 4  # slow requests in progress: others need connections, too
# With schemas, of which each may take a core for a second.
_SLOW_FIELDS = (
    "json_schema", "response_format", "tools", "text", "output_format", "output_config", "guided_json",
    "structured_outputs",
)  # fmt: skip

# Fields of other servers. Many clients send them, and they resemble fields that mean something else.
_OTHERS = {
    "chat_template", "min_tokens", "models", "parse_tool_calls", "speculative.n_min", "speculative.p_min",
    "temperature_last", "tool_ids", "top_a", "top_logprobs",
}  # fmt: skip
_SYNONYMS = {"max_length": "max_tokens", "stop_sequences": "stop", "temp": "temperature"}
_MAX_NAME = 40
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9._-]{{0,{_MAX_NAME - 1}}}")  # can be sent in a header
# With these values, fields that have no effect ask for nothing: defaults of llama-server, vLLM, OpenAI and Anthropic.
# So do those that are false, 0 or empty.
_DEFAULTS: dict[str, Sequence[object]] = {
    "dry_base": [1.75], "dry_allowed_length": [2], "dry_penalty_last_n": [-1, 64], "mirostat_tau": [5],
    "mirostat_eta": [0.1], "xtc_threshold": [0.1], "dynatemp_exponent": [1], "top_n_sigma": [-1],
    "adaptive_target": [-1], "adaptive_decay": [0.9], "dry_sequence_breakers": [["\n", ":", '"', "*"]],
    "t_max_predict_ms": [-1], "t_max_prompt_ms": [-1], "n_cmpl": [1], "n": [1], "best_of": [1], "length_penalty": [1],
    "tfs_z": [1], "skip_special_tokens": [True], "spaces_between_special_tokens": [True], "include_reasoning": [True],
    "add_special_tokens": [True], "parse_tool_calls": [True], "reasoning_budget_tokens": [-1], "verbosity": ["medium"],
    "service_tier": ["auto", "default"], "modalities": [["text"]], "function_call": ["auto", "none"],
    "truncation": ["disabled"],
}  # fmt: skip
_MAX_DEFAULT = 64  # bytes
_OBJECTS = {  # fields whose own fields are told, too, and those of these that have an effect
    "reasoning": ["effort"], "stream_options": ["include_usage"], "text": ["format"],
    "thinking": ["type", "budget_tokens"],
}  # fmt: skip
_MAX_NAMED = 64  # fields that have no effect
_MAX_COMPARED = 32  # unknown fields of one request
_SIMILAR = 0.8  # difflib's ratio

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


class RequestWork:
    """Processes requests on other threads: slow ones one after the other, so that they do not delay the others."""

    def __init__(self) -> None:
        self._one = anyio.CapacityLimiter(1)
        self._n_slow = 0
        self._logged: set[str] = set()  # hints, each once and few, so that no client fills the log

    async def run(self, work: Callable[[], T], *, is_slow: bool) -> T:
        """The result of `work`. Raises what it raises, and BusyError if too many wait."""
        if is_slow and self._n_slow >= MAX_SLOW:
            raise BusyError(f"{MAX_SLOW} large requests are in progress: try again later")
        self._n_slow += is_slow
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._one if is_slow else None)
        finally:
            self._n_slow -= is_slow

    async def parse_request(self, request: Request, kind: type[R]) -> tuple[R, bool]:
        """The body, and whether it is slow; hints for the client go into the scope. Raises ApiError and BusyError."""
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BODY:
                raise ApiError(413, f"the body is larger than {MAX_BODY} bytes")
        is_large = len(data) > LARGE

        def parse() -> tuple[R, bool]:
            try:
                if len(data) > MAX_OPTIONS:
                    _check_size(data)
                fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
                known = kind.__struct_encode_fields__
                hints = misspelt(fields, known)
                if issubclass(kind, SharedFields):
                    others = [name for name in TextBody.__struct_encode_fields__ if name in fields.keys() - {*known}]
                    others = [name for name in others if name != "stream_options" and _asks(name, fields[name])]
                    hints += [f'unknown field "{name}": it is not one of this API' for name in others]
                    told = {*known, *TextBody.__struct_encode_fields__, *(hint.split('"')[1] for hint in hints)}
                    request.scope[NO_EFFECT] = _without_effect(fields, told)
                self._log(hints)
                request.scope[WARNING] = "; ".join(hints[:3])
                is_slow = is_large or any(bytes(fields.get(name, b"null")) != b"null" for name in _SLOW_FIELDS)
                return msgspec.json.decode(data, type=kind), is_slow
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                raise ApiError(400, f"invalid request: {error}") from None

        return await self.run(parse, is_slow=True) if is_large else parse()

    def _log(self, hints: Iterable[str]) -> None:
        for hint in hints:
            if hint not in self._logged and len(self._logged) < _MAX_COMPARED:
                self._logged.add(hint)
                log.warning("a client sent an %s", hint)


def misspelt(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """What to tell about names that are misspellings of `known` fields, and not fields of other servers."""
    targets = [*known, *(synonym for synonym, field in _SYNONYMS.items() if field in known)]
    unknown = [name for name in names if name not in known and name not in _OTHERS and _NAME.fullmatch(name)]
    return [
        f'unknown field "{name}": did you mean "{_SYNONYMS.get(nearest, nearest)}"?'
        for name in unknown[:_MAX_COMPARED]
        for nearest in difflib.get_close_matches(name.lower(), targets, 1, _SIMILAR)
    ]


def _asks(name: str, value: msgspec.Raw) -> bool:
    """Whether a field asks for anything: its value is not empty, nor its default."""
    found = msgspec.json.decode(value) if len(bytes(value)) <= _MAX_DEFAULT else value
    defaults = _DEFAULTS.get(name, ())
    return found not in defaults and (bool(found) or (found is False and True in defaults))


def _without_effect(fields: Mapping[str, msgspec.Raw], told: Container[str]) -> str:
    """What to tell about fields that ask for something and change nothing, but for those that are `told`."""
    objects = {of: fields[of] for of in _OBJECTS if of in told and bytes(fields.get(of, b""))[:1] == b"{"}
    for of, raw in objects.items():
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items()
        fields = {**fields, **{f"{of}.{name}": value for name, value in members if name not in _OBJECTS[of]}}
    asked = [name for name, value in fields.items() if name not in told and _asks(name, value)]
    found = [name if _NAME.fullmatch(name) else ascii(name[:_MAX_NAME]) for name in asked]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"without effect here: {', '.join(found[:_MAX_NAMED])}{more}" if found else ""


# The fields of requests that may be large, not decoded.
_NAMES = ("messages", "prompt", "content", "tokens", "input")
_LARGE_FIELDS = msgspec.defstruct("_LargeFields", [(name, msgspec.Raw, msgspec.Raw()) for name in _NAMES])


def _check_size(body: bytearray) -> None:
    """Raise ApiError if too much of `body` is not text: megabytes of nested values take a second to decode."""
    text = msgspec.json.decode(body, type=_LARGE_FIELDS)
    n_text = max(len(bytes(raw)) for raw in msgspec.structs.astuple(text))
    if len(body) - n_text > MAX_OPTIONS:
        raise ApiError(413, f"a request may have at most {MAX_OPTIONS} bytes besides its text")


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

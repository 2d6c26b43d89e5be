"""Receives the bodies of requests and parses them, within limits; tells clients what is wrong, or has no effect."""

import difflib
import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from duo.chat.conversation import MAX_OPTIONS
from duo.chat.prompt import LARGE
from duo.errors import ApiError, BusyError, ClosedError, PromptError, UsageError
from duo.http.guard import error_body
from duo.http.listener import MAX_CONNECTIONS
from duo.server.api import SharedFields, TextBody

log = logging.getLogger("duo.server")

STOPPING = "the server is stopping"
WARNING = "duo.warning"  # in the scope of a request: what to tell the client besides the response
NO_EFFECT = "duo.no_effect"  # in the scope: further such words, which explain no error
ERROR_BODY = "duo.error_body"  # in the scope: what makes the body of an error, if it is not OpenAI's
WARNING_HEADER = "X-Duo-Warning"
_MAX_MESSAGE = 500  # characters of an error: it may quote the request

MAX_BODY = 8 * 1024 * 1024  # bytes
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

    def __init__(self, *, logs: bool = True) -> None:
        """`logs`: whether hints for clients are logged, too."""
        self._logs = logs
        self._one = anyio.CapacityLimiter(1)
        self.n_slow = 0
        self._logged: set[str] = set()  # hints, each once and few, so that no client fills the log

    async def run(self, work: Callable[[], T], *, is_slow: bool) -> T:
        """The result of `work`. Raises what it raises, and BusyError if too many wait."""
        if is_slow and self.n_slow >= MAX_SLOW:
            raise BusyError(f"{MAX_SLOW} large requests are in progress: try again later")
        self.n_slow += is_slow
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._one if is_slow else None)
        finally:
            self.n_slow -= is_slow

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
            if self._logs and hint not in self._logged and len(self._logged) < _MAX_COMPARED:
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


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(document), status, headers, "application/json")


def openai_error(error: ApiError) -> dict[str, object]:
    """The JSON of an error in OpenAI's format."""
    return error_body(error.status, str(error)[:_MAX_MESSAGE], error.code)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # never sent
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        hint = f"use {headers['Allow']}" if "Allow" in headers else "the base URL of the API is http://HOST:PORT/v1"
        message = f"{request.method[:20]} {request.url.path[:100]!r}: {error.detail} ({hint})"
        return json_response(openai_error(ApiError(error.status_code, message)), error.status_code, headers)
    refused = ApiError.of(error)
    if refused.status == 400 and (warning := request.scope.get(WARNING)):  # which may be the reason
        refused = ApiError(400, f"{str(refused)[:300]} ({warning})", refused.code)
    return _refusal(request, refused)


async def _on_fault(request: Request, error: Exception) -> Response:
    log.error("internal error at %s: %r", request.url.path, error, exc_info=error)
    return _refusal(request, ApiError(500, f"internal error: {type(error).__name__}"))


def _refusal(request: Request, error: ApiError) -> Response:
    body = request.scope.get(ERROR_BODY, openai_error)(error)
    return json_response(body, error.status, {"Retry-After": "1"} if error.status == 503 else None)


# Besides faults of the server, requests may raise these.
_EXPECTED = HTTPException, ApiError, PromptError, UsageError, BusyError, ClosedError, ClientDisconnect, RecursionError
HANDLERS: dict[Any, ExceptionHandler] = {**dict.fromkeys(_EXPECTED, _on_error), Exception: _on_fault}

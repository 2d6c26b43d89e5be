"""Receives the body of a request and parses it, within limits, and tells the client about misspelt names of fields."""

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import anyio
import msgspec
from starlette.requests import Request

from duo.errors import BusyError
from duo.link.connection import MAX_CONNECTIONS
from duo.llama.model import Model
from duo.server.api import SharedFields, TextBody
from duo.server.api_error import WARNING, ApiError
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
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{1,39}")  # can be sent in a header
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
                    others = (name for name in TextBody.__struct_encode_fields__ if name in fields.keys() - {*known})
                    hints += [f'unknown field "{name}": it is not one of this API' for name in others]
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
    """The error for a prompt that does not fit, in the words that clients know: they shorten the chat."""
    message = f"prompt is too long: {about}{n_tokens} tokens > {n_ctx} maximum."
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

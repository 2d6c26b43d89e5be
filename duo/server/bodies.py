"""Bodies: receives requests and parses them."""

from __future__ import annotations

from typing import TypeVar

import anyio
import msgspec
from starlette.requests import Request

from duo.link.guard import ApiError
from duo.server.fields import misspelt
from duo.server.tokens import TokenWork

MOST_BODY = 8 * 1024 * 1024  # bytes
MOST_OPTIONS = 2**19  # bytes of a request that are not its text
BODY_S = 30.0  # for a client to send the body
WARNING = "duo.warning"  # in the scope of a request: what to tell the client besides the response
_SMALL = 2**16  # bytes that are parsed in less than a millisecond

R = TypeVar("R", bound=msgspec.Struct)


async def received(request: Request, work: TokenWork, kind: type[R]) -> R:
    """The body, parsed. Raises ApiError if it is invalid, too large or too slow."""
    data = bytearray()
    try:
        if int(request.headers.get("content-length", 0)) > MOST_BODY:
            raise ApiError(413, f"the body is larger than {MOST_BODY} bytes")
        with anyio.fail_after(BODY_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BODY:
                    raise ApiError(413, f"the body is larger than {MOST_BODY} bytes")
    except TimeoutError:
        raise ApiError(408, f"the body was not received within {BODY_S:.0f} seconds") from None
    if len(data) <= _SMALL:
        return _parse(bytes(data), kind, request)
    return await work.run(len(data), lambda: _parse(bytes(data), kind, request))


def _parse(body: bytes, kind: type[R], request: Request) -> R:
    """Parse the body of a request, and note in its scope what its client should know. Raises ApiError."""
    try:
        if len(body) > MOST_OPTIONS:
            _check_size(body)
        request.scope[WARNING] = misspelt(body, kind)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise ApiError(400, f"invalid request: {error}") from None


class _LargeFields(msgspec.Struct):
    """The fields of requests that may be large, not decoded."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    tokens: msgspec.Raw = msgspec.Raw()


def _check_size(body: bytes) -> None:
    """Raise ApiError if too much of `body` is not text: megabytes of nested values take a second to decode."""
    text = msgspec.json.decode(body, type=_LargeFields)
    n_text = max(len(bytes(raw)) for raw in (text.messages, text.prompt, text.content, text.tokens))
    if len(body) - n_text > MOST_OPTIONS:
        raise ApiError(413, f"a request may have at most {MOST_OPTIONS} bytes besides its text")

"""ApiError, and the responses to requests that fail, in OpenAI's format."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from duo.errors import BusyError, ClosedError, PromptError, UsageError
from duo.http.guard import error_body

STOPPING = "the server is stopping"
WARNING = "duo.warning"  # in the scope of a request: what to tell the client besides the response
NO_EFFECT = "duo.no_effect"  # in the scope: further such words, which explain no error
ERROR_BODY = "duo.error_body"  # in the scope: what makes the body of an error, if it is not OpenAI's
WARNING_HEADER = "X-Duo-Warning"
_MAX_MESSAGE = 500

log = logging.getLogger("duo.server")


class ApiError(Exception):
    """An error response in OpenAI's format."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @classmethod
    def of(cls, error: BaseException) -> "ApiError":
        """The response for an error of a request or of its text."""
        match error:
            case ApiError():
                return error
            case BusyError() | ClosedError():
                return cls(503, str(error))
            case UsageError() | PromptError():
                return cls(400, str(error))
            case RecursionError():
                return cls(400, "the request is nested too deeply")
        return cls(500, f"the generation failed: {error}")

    def body(self) -> dict[str, object]:
        """The JSON body."""
        return error_body(self.status, str(self)[:_MAX_MESSAGE], self.code)  # it may quote the request

    def response(self, headers: Mapping[str, str] | None = None, body: object = None) -> Response:
        """The response; `body`: that of another API."""
        return json_response(body or self.body(), self.status, {"Retry-After": "1"} if self.status == 503 else headers)


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(document), status, headers, "application/json")


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # never sent
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        hint = f"use {headers['Allow']}" if "Allow" in headers else "the base URL of the API is http://HOST:PORT/v1"
        message = f"{request.method[:20]} {request.url.path[:100]!r}: {error.detail} ({hint})"
        return ApiError(error.status_code, message).response(headers)
    refused = ApiError.of(error)
    if refused.status == 400 and (warning := request.scope.get(WARNING)):  # which may be the reason
        refused = ApiError(400, f"{str(refused)[:300]} ({warning})", refused.code)
    return _response(request, refused)


async def _on_fault(request: Request, error: Exception) -> Response:
    log.error("internal error at %s: %r", request.url.path, error, exc_info=error)
    return _response(request, ApiError(500, f"internal error: {type(error).__name__}"))


def _response(request: Request, refused: ApiError) -> Response:
    make = request.scope.get(ERROR_BODY)
    return refused.response(body=make(refused) if make is not None else None)


# Besides faults of the server, requests may raise these.
_EXPECTED = HTTPException, ApiError, PromptError, UsageError, BusyError, ClosedError, ClientDisconnect, RecursionError
HANDLERS: dict[Any, ExceptionHandler] = {**dict.fromkeys(_EXPECTED, _on_error), Exception: _on_fault}

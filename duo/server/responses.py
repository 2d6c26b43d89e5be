"""Responses: errors in OpenAI's format, and a header that warns of misspelt fields."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duo.errors import ClosedError, PromptError
from duo.link.guard import ApiError, error_response
from duo.link.messages import ROUTE
from duo.server.bodies import WARNING
from duo.server.streams import as_api_error
from duo.server.texts import STOPPING

WARNING_HEADER = "X-Duo-Warning"

log = logging.getLogger("duo.server")


class Warned:
    """ASGI middleware: adds the header to responses to requests with a misspelt field."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and (warning := scope.get(WARNING)):
                MutableHeaders(scope=message)[WARNING_HEADER] = warning
            await send(message)

        await self._app(scope, receive, send_with_header)


async def on_error(request: Request, error: Exception) -> Response:
    """The response for a request that could not be served."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # never sent
    if isinstance(error, HTTPException):
        return error_response(ApiError(error.status_code, _advice(request, error)), error.headers)
    if isinstance(error, ClosedError):
        return error_response(ApiError(503, STOPPING, "unavailable_error"))
    if isinstance(error, RecursionError):
        error = ApiError(400, "the request is nested too deeply")
    if isinstance(error, PromptError):
        error = ApiError(400, str(error))
    refused = error if isinstance(error, ApiError) else as_api_error(error)
    if refused.status == 400 and (warning := request.scope.get(WARNING)):  # which may be the reason
        refused = ApiError(400, f"{str(refused)[:300]} ({warning})", refused.kind, refused.code)
    return error_response(refused)


async def on_fault(request: Request, error: Exception) -> Response:
    """The response for a fault of the server, which is logged."""
    log.error("internal error at %s: %r", request.url.path, error, exc_info=error)
    return error_response(ApiError(500, f"internal error: {type(error).__name__}", "server_error"))


def _advice(request: Request, error: HTTPException) -> str:
    """What is wrong with the path or the method, and what would not be."""
    path = request.url.path[:100]
    if error.status_code == 404:
        return f"there is no {path!r}; the endpoints are {_endpoints(request.app.routes)}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "").split(", ")
        return f"{path} does not accept {request.method[:20]!r}: use {' or '.join(sorted(allowed))}"
    return str(error.detail)


def _endpoints(routes: Iterable[BaseRoute]) -> str:
    """The paths by their methods, each once."""
    paths = defaultdict(list)
    known = [r for r in routes if isinstance(r, Route) and r.include_in_schema and r.path != ROUTE]
    for route in known:
        if not any(other.path == f"/v1{route.path}" for other in known):
            method = "POST" if "POST" in (route.methods or ()) else "GET"
            paths[method].append(route.path.replace(":path}", "}"))
    return "; ".join(f"{method} {', '.join(found)}" for method, found in paths.items())

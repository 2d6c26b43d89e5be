"""Guard: checks the API key, Host and Origin of requests to an HTTP application."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duo.link.messages import ROUTE

_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # usually 1,024; each connection is an open file
MOST_CONNECTIONS = 512 if _FILES == resource.RLIM_INFINITY else min(512, _FILES // 2)
MOST_REQUESTS = MOST_CONNECTIONS // 2  # at a time, so that there is always a connection for /health
_ALWAYS = ("/health", "/v1/health")  # answered without a key, however many requests are in progress
_MAX_MESSAGE = 500
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class ApiError(Exception):
    """An error response in OpenAI's format."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        message = str(self)[:_MAX_MESSAGE]  # it may quote the request
        return {"error": {"message": message, "type": self.kind, "param": None, "code": self.code or self.status}}


@dataclass(frozen=True, slots=True)
class Rules:
    """Which requests are allowed."""

    keys: Sequence[str] = ()  # API keys, of which a client must send one; empty: none is needed
    hosts: frozenset[str] | None = None  # allowed names in the Host header; None: any
    origins: frozenset[str] = frozenset()  # allowed web sites; * is all
    public: frozenset[str] = frozenset()  # paths that are read without a key


class Guard:
    """ASGI middleware that rejects requests against the rules."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._keys = [_digest(key) for key in rules.keys]
        self._n_requests = 0  # in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request or reject it."""
        if scope["type"] not in ("http", "websocket"):
            return

        error = self._check(scope["path"], scope.get("method", ""), Headers(scope=scope))
        is_request = scope["type"] == "http"
        if error is None and is_request and scope["path"] not in _ALWAYS:
            await self._serve(scope, receive, send)
        elif error is None:
            await self._app(scope, receive, send)
        elif is_request:
            await error_response(error)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: status 403

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request. It counts once its body is complete: until then, its connection can be closed."""
        counts = refused = False

        async def receive_counted() -> Message:
            nonlocal counts, refused
            message = await receive()
            is_complete = message["type"] == "http.request" and not message.get("more_body")
            if is_complete and not counts:
                if self._n_requests >= MOST_REQUESTS:
                    refused = True
                    return {"type": "http.disconnect"}
                counts = True
                self._n_requests += 1
            return message

        async def send_unless_refused(message: Message) -> None:
            if not refused:
                await send(message)

        try:
            await self._app(scope, receive_counted, send_unless_refused)
        finally:
            self._n_requests -= counts
        if refused:
            message = f"{MOST_REQUESTS} requests are in progress: try again later"
            await error_response(ApiError(503, message, "unavailable_error"))(scope, receive, send)

    def _check(self, path: str, method: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._rules.hosts is not None and _name(host) not in self._rules.hosts:
            message = f"the host {_name(host)[:100]!r} is not allowed: add it to the server's allowed hosts"
            return ApiError(403, message, "permission_error")
        origin = headers.get("origin")
        is_allowed = origin is None or origin.partition("://")[2] == host or {"*", origin} & self._rules.origins
        if not is_allowed:
            return ApiError(403, "this origin is not allowed: add it to the server's CORS origins", "permission_error")
        # Remote drafts have a separate token; browsers send OPTIONS without a key.
        is_public = path in self._rules.public and method in ("GET", "HEAD")
        needs_key = path not in (*_ALWAYS, ROUTE) and method != "OPTIONS" and not is_public
        if self._keys and needs_key and not self._has_key(headers):
            return ApiError(401, "the API key is missing or wrong", "authentication_error", "invalid_api_key")
        return None

    def _has_key(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", ""))
        # Compares with all keys, so that the time does not depend on which one matches.
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this address."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, more: Iterable[str] = ()) -> frozenset[str] | None:
    """The host names that a server at this address allows, against DNS rebinding; None: any."""
    if not is_loopback(host) and not more:
        return None
    return frozenset((*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more)))


def in_url(host: str) -> str:
    """The address as part of a URL."""
    return f"[{host}]" if ":" in host else host


def error_response(error: ApiError, more: Mapping[str, str] | None = None) -> JSONResponse:
    """The response for an error, with additional headers."""
    headers = dict(more or {})
    if error.status == 503:
        headers["Retry-After"] = "1"
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.body(), error.status, headers)


def _name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

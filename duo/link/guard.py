"""Guard: which requests pass to an HTTP application, by key, Host and Origin."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from duo.link.messages import ROUTE

_LONGEST_MESSAGE = 500
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class ApiError(Exception):
    """What a client is told instead of an answer, in OpenAI's shape."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON."""
        message = str(self)[:_LONGEST_MESSAGE]  # it may quote what was asked
        return {"error": {"message": message, "type": self.kind, "param": None, "code": self.code or self.status}}


@dataclass(frozen=True, slots=True)
class Rules:
    """What is let through."""

    keys: Sequence[str] = ()  # one of which a client must know; none: it need not know any
    hosts: frozenset[str] | None = None  # names that it may have called the server by; None: any
    origins: frozenset[str] = frozenset()  # web sites whose pages may ask; * is all

    def allows(self, origin: str) -> bool:
        """Whether pages of this site may ask."""
        return "*" in self.origins or origin in self.origins


class Guard:
    """Checks key, Host and Origin."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._keys = [_digest(key) for key in rules.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            return

        refusal = self._refusal(scope["path"], scope.get("method", ""), Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: status 403
        else:
            await error_response(refusal)(scope, receive, send)

    def _refusal(self, path: str, method: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._rules.hosts is not None and _name(host) not in self._rules.hosts:
            message = f"this server is not called {_name(host)[:100]!r}: it has to allow this host"
            return ApiError(403, message, "permission_error")
        origin = headers.get("origin")
        if origin is not None and not (self._rules.allows(origin) or origin.partition("://")[2] == host):
            return ApiError(
                403, "pages of other sites may not ask: the server has to allow this origin", "permission_error"
            )
        # Backs have a token of their own; browsers ask with OPTIONS before they send a key.
        if (
            self._keys
            and path not in ("/health", "/v1/health", ROUTE)
            and method != "OPTIONS"
            and not self._knows_key(headers)
        ):
            return ApiError(401, "the API key is missing or wrong", "authentication_error", "invalid_api_key")
        return None

    def _knows_key(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", ""))
        # All of them, so that the time does not tell which.
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, more: Iterable[str] = ()) -> frozenset[str] | None:
    """The names that a server at this address answers to: DNS rebinding makes others up. None: any."""
    if not is_loopback(host) and not more:
        return None
    return frozenset((*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more)))


def in_url(host: str) -> str:
    """An address as URLs write it."""
    return f"[{host}]" if ":" in host else host


def error_response(error: ApiError, more: Mapping[str, str] | None = None) -> JSONResponse:
    """The response for an error, with `more` headers."""
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

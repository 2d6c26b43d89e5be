"""Guard: refuses requests from other web sites, to other host names (DNS rebinding), or without an API key."""

import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
CLIENT = "duo.client"  # in a scope: who asks; see Turns
# OpenAI's types of errors
_KINDS = {
    401: "authentication_error", 403: "permission_error", 500: "server_error", 501: "not_supported_error",
    503: "unavailable_error",
}  # fmt: skip
ROUTE = "/v1/draft"  # of the WebSocket of remote drafts
_WITHOUT_KEY = ("/health", "/v1/health", ROUTE)  # remote drafts have a token of their own


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI middleware that checks the headers Host, Origin, Sec-Fetch-Site and, where there are keys, Authorization."""

    app: ASGIApp
    hosts: frozenset[str] | None  # allowed names in the Host header; None: any
    origins: frozenset[str] = frozenset()  # allowed web sites; * is all
    keys: Sequence[str] = ()  # a client must send one of them, but not for the page; none: it needs none
    has_page: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            return
        headers = Headers(scope=scope)
        if (refusal := self._refusal(scope, headers)) is None:
            # Where all have the same key, or none, each connection is a client.
            scope[CLIENT] = _given_key(headers) if len(self.keys) > 1 else scope.get("client")
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: status 403
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        if {"content-length", "transfer-encoding"} <= {*headers}:  # a proxy may read it as other requests
            body = error_body(400, "a request must not have both Content-Length and Transfer-Encoding")
            return JSONResponse(body, 400, {"Connection": "close"})
        host = headers.get("host", "")
        # Browsers, which DNS rebinding is about, send HTTP/1.1; load balancers ask in HTTP/1.0, without this header.
        has_none = "host" not in headers and scope.get("http_version") == "1.0"
        if self.hosts is not None and _name(host) not in self.hosts and not has_none:
            fault = f"the host {_name(host)[:100]!r} is not allowed: start the lead with --allowed-host and its name"
            return JSONResponse(error_body(403, fault), 403)
        if self._is_foreign(scope["path"], host, headers):
            origin = headers.get("origin")
            site = f"the origin {origin[:100]!r}" if origin else "a request of another web site"
            fault = f"{site} is not allowed: start the lead with --cors-origin and its origin"
            return JSONResponse(error_body(403, fault), 403)
        if not self.keys or self._is_public(scope) or self._has_key(headers):
            return None
        # Also an error of Anthropic's API, by its `type`.
        body = {"type": "error"} | error_body(401, "the API key is missing or wrong", "invalid_api_key")
        return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})

    def _is_foreign(self, path: str, host: str, headers: Headers) -> bool:
        """Whether another web site, which is not allowed, has made a browser send this."""
        origin = headers.get("origin")
        if "*" in self.origins or origin in self.origins:
            return False
        # Browsers send no Origin with many a GET of another web site. A link there may lead to the page.
        is_link = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        is_foreign = headers.get("sec-fetch-site") == "cross-site" and not is_link
        return is_foreign or (origin is not None and (origin.partition("://")[2] or None) != host)

    def _is_public(self, scope: Scope) -> bool:
        path, method = scope["path"], scope.get("method")  # a WebSocket has none
        is_page = self.has_page and method in ("GET", "HEAD") and (path == "/" or path.startswith("/page/"))
        return is_page or path in _WITHOUT_KEY or method == "OPTIONS"  # which browsers send without a key

    def _has_key(self, headers: Headers) -> bool:
        given = _given_key(headers)
        keys = [key.encode("utf-8", "surrogateescape") for key in self.keys]
        # Compares with all keys, so that the time does not depend on which one matches.
        return sum(hmac.compare_digest(given.encode("latin-1"), key) for key in keys) > 0


def _given_key(headers: Headers) -> str:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def error_body(status: int, message: str, code: str | None = None) -> dict[str, object]:
    """The JSON of an error in OpenAI's format."""
    kind = _KINDS.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or status}}


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this address."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, more: Iterable[str] = ()) -> frozenset[str] | None:
    """The host names that a server at this address allows; None: any."""
    if not is_loopback(host) and not more:
        return None
    return frozenset((*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more)))


def in_url(host: str) -> str:
    """The address as part of a URL."""
    return f"[{host}]" if ":" in host else host


def _name(host: str) -> str:
    """The name in a Host header, without port and brackets; all of it, if that is not what it has."""
    found = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::[0-9]*)?", host)
    return (found[1] or found[2] or "" if found else host).lower()

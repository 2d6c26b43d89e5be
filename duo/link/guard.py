"""Guard: refuses requests from other web sites, and to other host names, against DNS rebinding."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Guard:
    """ASGI middleware that checks the headers Host, Origin and Sec-Fetch-Site."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, origins: frozenset[str] = frozenset()) -> None:
        """`hosts`: allowed names in the Host header; None: any. `origins`: allowed web sites; * is all."""
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            return
        error = self._fault(scope["path"], Headers(scope=scope))
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await JSONResponse(error_body(403, error, "permission_error"), 403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: status 403

    def _fault(self, path: str, headers: Headers) -> str | None:
        """Why a request is refused."""
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return f"the host {_name(host)[:100]!r} is not allowed: add it to the server's allowed hosts"
        origin = headers.get("origin")
        if "*" in self._origins or origin in self._origins:
            return None
        # Browsers send no Origin with many a GET of another web site. A link there may lead to the page.
        is_link = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        is_foreign = headers.get("sec-fetch-site") == "cross-site" and not is_link
        if is_foreign or (origin is not None and origin.partition("://")[2] != host):
            return "this origin is not allowed: add it to the server's CORS origins"
        return None


def error_body(
    status: int, message: str, kind: str = "invalid_request_error", code: str | None = None
) -> dict[str, object]:
    """The JSON of an error in OpenAI's format."""
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
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()

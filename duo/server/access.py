"""Access: API keys, the limit on requests in progress, and the header with what to tell a client."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duo.link.connection import MAX_CONNECTIONS
from duo.link.messages import ROUTE
from duo.server.api_error import WARNING, ApiError

MAX_REQUESTS = MAX_CONNECTIONS // 2  # at a time, so that there is always a connection for /health
WARNING_HEADER = "X-Duo-Warning"
_ALWAYS = ("/health", "/v1/health")  # answered without a key, however many requests are in progress


class Access:
    """ASGI middleware that refuses requests without a key, and more requests than the server can handle."""

    def __init__(self, app: ASGIApp, keys: Sequence[str] = (), public: frozenset[str] = frozenset()) -> None:
        """`keys`: API keys, of which a client must send one; none: it needs none. `public`: paths read without one."""
        self._app = app
        self._keys = [_digest(key) for key in keys]
        self._public = public
        self._n_requests = 0  # in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request or refuse it."""
        if scope["type"] != "http":  # remote drafts have a token of their own
            await self._app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        is_free = path in (*_ALWAYS, ROUTE) or method == "OPTIONS"  # which browsers send without a key
        is_free |= path in self._public and method in ("GET", "HEAD")
        if self._keys and not is_free and not self._has_key(Headers(scope=scope)):
            error = ApiError(401, "the API key is missing or wrong", "authentication_error", "invalid_api_key")
            await error.response()(scope, receive, send)
        elif path in _ALWAYS:
            await self._app(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request. It counts once its body is complete: until then, its connection can be closed."""
        counts = refused = False

        async def receive_counted() -> Message:
            nonlocal counts, refused
            message = await receive()
            is_complete = message["type"] == "http.request" and not message.get("more_body")
            if is_complete and not counts:
                if self._n_requests >= MAX_REQUESTS:
                    refused = True
                    return {"type": "http.disconnect"}
                counts = True
                self._n_requests += 1
            return message

        async def send_unless_refused(message: Message) -> None:
            if message["type"] == "http.response.start" and (warning := scope.get(WARNING)):
                MutableHeaders(scope=message)[WARNING_HEADER] = warning
            if not refused:
                await send(message)

        try:
            await self._app(scope, receive_counted, send_unless_refused)
        finally:
            self._n_requests -= counts
        if refused:
            message = f"{MAX_REQUESTS} requests are in progress: try again later"
            await ApiError(503, message, "unavailable_error").response()(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", ""))
        # Compares with all keys, so that the time does not depend on which one matches.
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

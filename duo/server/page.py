"""The page: its static files, which need no key because they contain no secret."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_INDEX = "index.html"  # at /; the other files are at /page/NAME
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser asks each time whether the file has changed
}


class Page:
    """The files of the page, read once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}  # content, media type and ETag by path
        for file in (files("duo.server") / "assets").iterdir():
            if media_type := _TYPES.get(PurePath(file.name).suffix):
                content = file.read_bytes()
                path = "/" if file.name == _INDEX else f"/page/{file.name}"
                self._files[path] = content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    @property
    def paths(self) -> frozenset[str]:
        """The paths of the files."""
        return frozenset(self._files)

    def routes(self) -> list[Route]:
        """A route for each file, which is no endpoint of the API."""
        return [Route(path, self._serve, include_in_schema=False) for path in sorted(self._files)]

    async def _serve(self, request: Request) -> Response:
        content, media_type, etag = self._files[request.scope["path"]]
        headers = {**_HEADERS, "ETag": etag}
        known = request.headers.get("if-none-match", "").split(",")
        if etag in (tag.strip().removeprefix("W/") for tag in known):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

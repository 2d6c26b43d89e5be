"""The page: its static files, which need no key because they contain no secret."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

ASSETS = Path(__file__).parent / "assets"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser asks each time whether the file has changed
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """index.html at /, the other files at /page/NAME."""
    files = _Files(directory=ASSETS)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount("/page", files)]

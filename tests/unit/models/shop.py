"""A package index on a local port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.unit.models.fake_hub import served


class Shop:
    """`pages` by path; a path without one is not found."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages, self.url = pages, ""
        self.cut = 0  # bytes that are missing at the end of a wheel
        self.moved: dict[str, str] = {}
        self.seen: list[tuple[str, str | None]] = []  # paths, with the authorisation that came with each


@contextmanager
def shop(pages: dict[str, bytes]) -> Iterator[Shop]:
    """Serve these pages."""
    here = Shop(pages)

    class ShopHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.seen.append((self.path, self.headers["Authorization"]))
            if self.path in here.moved:
                self.send_response(302)
                self.send_header("Location", here.moved[self.path])
                return self.end_headers()
            if self.path not in here.pages:
                return self.send_error(404)
            page = here.pages[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page[: len(page) - here.cut * self.path.endswith(".whl")])
            return None

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with served(ShopHandler) as url:
        here.url = f"{url}/simple"
        yield here

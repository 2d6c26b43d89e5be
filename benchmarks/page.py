"""Watching a lead: the page in a browser, and a bare subscriber of the live events."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from benchmarks.runner import note
from benchmarks.servers import Server
from duo.errors import DuoError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EVENTS = "/v1/duo/events"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_S = 60.0
_LOADED_S = 3.0  # after which a browser has done what loading a page gives it to do


class Subscription:
    """Receives and checks the live events of a lead on a thread, from construction to the end of `with`."""

    def __init__(self, lead: Server) -> None:
        """Raises DuoError or OSError."""
        self.counts = Counter[str]()  # of events by name
        self.problem: str | None = None
        self._begun: list[int] = []  # texts that have not ended
        self._has_begun = self._leaves = False
        self._connection = http.client.HTTPConnection("127.0.0.1", lead.port, timeout=_PATIENCE_S)
        self._connection.request("GET", EVENTS)
        self._response = self._connection.getresponse()
        if self._response.status != http.client.OK:
            raise DuoError(f"{EVENTS}: status {self._response.status}")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self._leaves = True
        with suppress(OSError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_PATIENCE_S)
        self._connection.close()

    def _read(self) -> None:
        name = ""
        try:
            for line in self._response:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    self.counts[name] += 1
                    self._check(name, json.loads(line[6:]))
            fault = "the stream has ended"
        except (OSError, ValueError, http.client.HTTPException) as error:
            fault = repr(error)
        if not self._leaves:
            self.problem = fault

    def _check(self, name: str, document: dict[str, Any]) -> None:
        """Each text begins once and ends once; what is between is about it. Raises ValueError.

        What comes before the first one begins is about the last text of before.
        """
        if name == "text" and document["state"] == "begins":
            self._begun.append(document["id"])
            self._has_begun = True
        elif not self._has_begun:
            return
        elif name != "state" and document["id"] not in self._begun:
            raise ValueError(f"{name} of a text that has not begun: {document['id']}")
        elif name == "text":
            self._begun.remove(document["id"])


@contextmanager
def browser() -> Iterator[Browser | None]:
    """Chromium without a window; None, and a note, if it or Playwright is not installed."""
    program = next(filter(None, [os.environ.get("CHROMIUM"), *map(shutil.which, _BROWSERS)]), None)
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may be missing
    except ImportError:
        program = None
    if program is None:
        note("the page is not measured: Playwright or Chromium is not installed")
        yield None
        return
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=options)
        yield found
        found.close()


@contextmanager
def opened(found: Browser, lead: Server) -> Iterator[None]:
    """The page in a tab, with its lanes, which follow the live events."""
    tab = found.new_page(viewport={"width": 1280, "height": 800})
    with tab.expect_response(lambda answer: answer.url.endswith(EVENTS)):
        tab.goto(lead.url)
        if tab.get_attribute("#live-toggle", "aria-expanded") != "true":
            tab.click("#live-toggle")
    tab.wait_for_timeout(1000 * _LOADED_S)
    yield
    tab.locator("#rate").filter(has_not_text="–").wait_for()  # it has shown the text
    tab.close()

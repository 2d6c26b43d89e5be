"""A browser, and what tests do with the page in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.page import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE_MS = 120_000.0  # until a test gives up; nothing is asserted about less
SLOW = "from tests.child import slow_target; slow_target(0.1)\n"  # before a lead: as a larger target would be


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Chromium without a window. Skips the test if it or Playwright is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    api.expect.set_options(timeout=PATIENCE_MS)
    with browser() as found:
        if found is None:
            pytest.skip("no browser: install chromium, or name one in the environment variable CHROMIUM")
        yield found


class Visits:
    """Pages of a lead, each in a session of its own, and whatever went wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.faults: list[str] = []

    def __call__(self, url: str, **options: Any) -> Page:
        """Open the page."""
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.on("console", lambda message: self._note(f"{message.type}: {message.text}"))
        context.on("weberror", lambda error: self._note(f"error: {error.error}"))
        context.on("request", lambda request: self._asked(url, request.url))
        page = context.new_page()
        page.goto(url)
        return page

    def _note(self, fault: str) -> None:
        # A refused request is what many tests are about; the browser reports it by itself.
        if fault.startswith(("error", "warning")) and "Failed to load resource" not in fault:
            self.faults.append(fault)

    def _asked(self, origin: str, url: str) -> None:
        if not url.startswith((f"{origin}/", "data:", f"blob:{origin}/")):
            self._note(f"error: request to {url}")

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()


def send(page: Page, text: str) -> None:
    """Send a message, once the page is ready for it."""
    page.wait_for_selector("#send:not([disabled])")
    page.fill("#input", text)
    n = page.locator(".assistant").count()
    page.click("#send")
    page.wait_for_function("n => document.querySelectorAll('.assistant').length > n", arg=n)


def ask(page: Page, text: str) -> Locator:
    """Send a message and wait for the end of its answer: the text of that."""
    send(page, text)
    wait_for_end(page)
    return text_of(page)


def wait_for_end(page: Page) -> None:
    """Wait until no answer is being written, and the next frame: until then `innerText` of the last one is empty."""
    page.wait_for_selector("#stop", state="hidden")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def goes_on(page: Page) -> None:
    """Wait until the last answer is longer than now."""
    n = len(text_of(page).inner_text())
    page.wait_for_function("n => document.querySelector('.assistant > .text').innerText.length > n", arg=n)


def answer(page: Page) -> Locator:
    """The last answer."""
    return page.get_by_label("Answer", exact=True).last


def stored(page: Page) -> Any:
    """The conversation that is shown, from the browser's storage."""
    return page.evaluate("JSON.parse(localStorage['duo:conversation:' + sessionStorage['duo:current']])")


def overflow(page: Page) -> float:
    """Pixels by which the page is wider than the window."""
    return float(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def text_of(page: Page) -> Locator:
    """The text of the last answer, without its reasoning."""
    return answer(page).locator("> .text")

"""Takes the pictures of the page in docs/: `python -m tests.browser.screenshots`. What they show is real.

The target is slowed down, as a larger one would be, so that its draft pays on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duo.models.demo import demo_pair
from tests.browser.browsing import Visits, a_browser, send, text_of, wait_for_end
from tests.command import ROOT, SLOW_TARGET
from tests.serving import BackProcess, LeadProcess, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that returns the factorial of n, and explain how it works in a numbered list.",
)
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
LANES_FULL = 60  # pieces of text until the lanes show six seconds


def main() -> None:
    """Write the three pictures."""
    target, draft = demo_pair()
    options = ("-c", "2048", "--exact", "--schedule", "async")
    with LeadProcess(target, *options, before=SLOW_TARGET) as lead, BackProcess(draft, lead.port) as back:
        back.wait_for("connected to the lead")
        with a_browser() as browser:
            visits = Visits(browser)
            page = visits(lead.url, viewport=WIDE)
            send(page, QUESTIONS[0])
            wait_for_end(page)
            send(page, QUESTIONS[1])
            wait_until(lambda: text_of(page).locator("span").count() > LANES_FULL)
            take(page, "lead-page")
            page.emulate_media(color_scheme="dark")
            take(page, "lead-page-dark")
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
            take(page, "lead-page-phone")
            visits.close()


def take(page: Page, name: str) -> None:
    """Write docs/NAME.png, once the lanes are drawn for its size and colours."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=ROOT / "docs" / f"{name}.png")


if __name__ == "__main__":
    main()

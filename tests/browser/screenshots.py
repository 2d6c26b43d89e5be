"""Takes the pictures of the page in docs/: `python -m tests.browser.screenshots`. What they show is real.

The target is slowed down, as a larger one would be, so that its draft pays on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duo.models.demo import demo_pair
from tests.browser.browsing import SLOW, Visits, a_browser, send, text_of, wait_for_end
from tests.command import ROOT
from tests.serving import BackProcess, LeadProcess, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

QUESTIONS = (
    "What are the benefits of reading books? Answer with a numbered list.",
    "Write a Python function that adds two numbers.",
)
N_CHARACTERS = 300  # of the last answer, when the pictures are taken


def main() -> None:
    """Write the three pictures."""
    target, draft = demo_pair()
    with LeadProcess(target, "-c", "2048", "--exact", before=SLOW) as lead, BackProcess(draft, lead.port) as back:
        back.wait_for("connected to the lead")
        with a_browser() as browser:
            visits = Visits(browser)
            page = visits(lead.url, viewport={"width": 1280, "height": 800})
            for question in QUESTIONS:
                wait_for_end(page)
                send(page, question)
            wait_until(lambda: len(text_of(page).inner_text()) > N_CHARACTERS)
            take(page, "lead-page")
            page.emulate_media(color_scheme="dark")
            take(page, "lead-page-dark")
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 390, "height": 844})
            take(page, "lead-page-phone")
            visits.close()


def take(page: Page, name: str) -> None:
    """Write docs/NAME.png, once the lanes are drawn for its size and colours."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=ROOT / "docs" / f"{name}.png")


if __name__ == "__main__":
    main()

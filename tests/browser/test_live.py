"""The panel beside the chat: what it shows of a real lead and of backs that come and go."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duo.server.lead_server import Lead
from tests.browser.browsing import SLOW, Visits, answer, send, text_of, wait_for_end
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import BackProcess, LeadProcess

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

QUESTION = "Write a long story about a lighthouse."
DRAWN = """canvas => {
    const style = getComputedStyle(document.documentElement);
    const colour = style.getPropertyValue("--accent").match(/\\w\\w/g).map((hex) => parseInt(hex, 16));
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let n = 0;
    for (let i = 0; i < data.length; i += 4) n += colour.every((value, k) => data[i + k] === value);
    return n;
}"""  # pixels of the target's spans


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with LeadProcess(demo_pair[0], "-c", "2048", "--exact", "--ignore-eos", "--schedule", "async", before=SLOW) as lead:
        yield lead
        assert lead.process.poll() is None
        assert not any("Traceback" in line for line in lead.lines)


def connected(lead: LeadProcess, draft: Path) -> BackProcess:
    back = BackProcess(draft, lead.port)
    back.wait_for("connected to the lead")
    return back


def test_a_back_joins_and_is_killed_while_text_streams(
    visit: Visits, lead: LeadProcess, demo_pair: tuple[Path, Path]
) -> None:
    page = visit(lead.url)
    panel = page.get_by_role("complementary", name="Live")
    expect(panel).to_contain_text("None is connected.")
    send(page, QUESTION)
    expect(text_of(page)).not_to_be_empty()
    assert text_of(page).locator(".from-draft").count() == 0
    with connected(lead, demo_pair[1]) as back:
        row = page.locator("#backs tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text(demo_pair[1].stem)
        expect(text_of(page).locator(".from-draft").first).to_be_visible()
        expect(row.get_by_role("cell").nth(3)).to_have_text("yes")
        expect(page.locator("#positions li span").first).to_have_text(re.compile("^[1-9]"))
        expect(page.locator("#lanes-text")).to_contain_text("remote draft")
        back.send(signal.SIGKILL)
        expect(row).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    n = len(text_of(page).inner_text())
    page.wait_for_function("n => document.querySelector('.assistant > .text').innerText.length > n", arg=n)
    page.keyboard.press("Escape")
    expect(answer(page)).to_contain_text("Stopped.")


def test_the_panel_shows_the_speed_and_the_lanes(visit: Visits, lead: LeadProcess) -> None:
    page = visit(lead.url)
    send(page, QUESTION)
    for name in ("rate", "alone", "ratio"):
        expect(page.locator(f"#{name}")).not_to_have_text("–")
    expect(page.locator("#lanes-text")).to_contain_text("target")
    assert page.locator("#lanes").evaluate(DRAWN) > 0
    expect(page.locator("#queue")).to_contain_text("1 running")
    expect(page.locator("#target")).to_contain_text("smollm2")
    expect(page.locator("#context")).to_have_text("2,048 tokens")
    expect(page.locator("#schedule")).to_have_text("target alone")
    page.keyboard.press("Escape")
    expect(page.locator("#queue")).to_contain_text("0 running")
    expect(page.locator("#rate")).to_have_text("–")
    expect(page.locator("#ratio")).to_have_text("–")


def test_a_closed_panel_asks_for_nothing(visit: Visits, url: str, slot: ScriptedSlot) -> None:
    page = visit(url, viewport={"width": 390, "height": 800})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    toggle = page.get_by_role("button", name="Live")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    send(page, "Hello")
    wait_for_end(page)
    assert not any("events" in one for one in asked)
    with page.expect_request("**/v1/duo/events"):
        toggle.click()
    expect(page.locator("#queue")).to_contain_text("0 running")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        toggle.click()
    page.reload()
    expect(page.get_by_role("complementary")).to_be_hidden()


def test_the_panel_reconnects_to_a_lead_that_was_restarted(visit: Visits) -> None:
    engine, _ = scripted_engine()
    with engine:
        with Lead(engine, port=0) as lead:
            page = visit(lead.url)
            expect(page.locator("#context")).to_have_text("512 tokens")
        told = page.get_by_role("complementary").get_by_role("status")
        expect(told).to_contain_text("Trying again.")
        send(page, "Hello")
        expect(answer(page)).to_contain_text("The lead does not answer. Is it running?")
    engine, slot = scripted_engine()
    slot.n_ctx = 700
    with engine, Lead(engine, port=lead.port):
        expect(page.locator("#context")).to_have_text("700 tokens")
        expect(told).to_be_hidden()
        answer(page).get_by_role("button", name="Retry").click()
        expect(text_of(page)).to_have_text(slot.text)


def test_a_model_that_is_still_loading_is_waited_for(visit: Visits) -> None:
    engine, _ = scripted_engine()
    with engine, Lead(port=0) as lead:
        page = visit(lead.url)
        expect(page.locator("#model")).to_have_text("The model is still loading.")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        lead.load(engine)
        expect(page.locator("#model")).to_contain_text("scripted")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator("#context")).to_have_text("512 tokens")


def test_a_dialog_for_the_key_that_was_cancelled_stays_closed(visit: Visits) -> None:
    engine, _ = scripted_engine()
    with engine, Lead(engine, port=0, api_keys=["right"]) as lead:
        page = visit(lead.url)
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        for _ in range(2):
            with page.expect_response("**/v1/duo/events"):
                pass
            expect(page.locator("#live-problem")).to_contain_text("This lead needs a key.")
            expect(dialog).to_be_hidden()
        send(page, "Hello")
        page.get_by_label("Key", exact=True).fill("right")
        dialog.get_by_role("button", name="Use this key").click()
        expect(text_of(page)).not_to_be_empty()
        expect(page.locator("#context")).to_have_text("512 tokens")
        expect(page.locator("#model")).to_contain_text("context of 512 tokens")


def test_names_of_backs_are_text(page: Any, slot: ScriptedSlot) -> None:
    def state() -> dict[str, Any]:
        back = {
            "id": 1, "name": "<b>x</b>\u202e", "model": "m" * 300, "in_use": True, "round_trip_ms": None,
            "verified": 10, "accepted": 5,
        }  # fmt: skip
        return {
            "model": None, "draft": None, "lookup": True, "backs": [back],
            "queue": {"running": 0, "waiting": 0, "limit": 1},
            "schedule": {"now": "off", "at_token": 3, "reason": "<i>"},
        }  # fmt: skip

    body = f"event: state\ndata: {json.dumps(state())}\n\n"
    page.route("**/v1/duo/events", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.reload()
    expect(page.locator("#backs tr")).to_contain_text("<b>x</b>U+202E")
    expect(page.locator("#backs tr")).to_contain_text("5 of 10")
    expect(page.locator("#reason")).to_have_text("Since token 3: <i>")
    expect(page.locator("#target")).to_have_text("loading …")

"""The panel beside the chat: what it shows of a real lead and of backs that come and go."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duo.server.lead_server import Lead
from tests.browser.browsing import SLOW, Visits, answer, ask, goes_on, send, text_of
from tests.browser.conftest import slow_lead
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
HEIGHT = "canvas => canvas.clientHeight"


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with slow_lead(demo_pair[0], "--ignore-eos", "--schedule", "async") as lead:
        yield lead


def test_a_back_joins_and_is_killed_while_text_streams(
    visit: Visits, lead: LeadProcess, demo_pair: tuple[Path, Path]
) -> None:
    page = visit(lead.url)
    row = page.locator("#backs tr")
    expect(page.get_by_role("complementary", name="Live")).to_contain_text("None is connected.")
    send(page, QUESTION)
    for name in ("rate", "alone", "ratio"):
        expect(page.locator(f"#{name}")).not_to_have_text("–")
    for name, text in (
        *(("lanes-text", "target"), ("queue", "1 running"), ("target", "smollm2")),
        *(("context", "2,048 tokens"), ("schedule", "target alone")),
    ):
        expect(page.locator(f"#{name}")).to_contain_text(text)
    page.wait_for_function(f"({DRAWN})(document.querySelector('#lanes')) > 0")
    assert text_of(page).locator(".from-draft").count() == 0
    with BackProcess(demo_pair[1], lead.port) as back:
        expect(row).to_have_count(1)
        expect(row).to_contain_text(demo_pair[1].stem)
        expect(text_of(page).locator(".from-draft").first).to_be_visible()
        expect(row.get_by_role("cell").nth(3)).to_have_text("yes")
        expect(page.locator("#positions li span").first).to_have_text(re.compile("^[1-9]"))
        expect(page.locator("#lanes-text")).to_contain_text("remote draft")
        back.send(signal.SIGKILL)
        expect(row).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    goes_on(page)
    page.get_by_role("button", name="Stop").click()
    expect(answer(page)).to_contain_text("Stopped.")
    expect(page.locator("#announce")).to_have_text("The answer was stopped.")
    expect(page.locator("#queue")).to_contain_text("0 running")
    for name in ("rate", "ratio"):
        expect(page.locator(f"#{name}")).to_have_text("–")


def test_texts_that_are_written_together_have_a_lane_each(visit: Visits, demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], "-c", "2048", "--ignore-eos", "--lookup", "off", before=SLOW) as lead:
        one, other = visit(lead.url), visit(lead.url)
        send(one, "Tell me of the sea.")
        expect(one.locator("#lanes-text")).to_have_text(re.compile("^Computing: target"))
        low = one.locator("#lanes").evaluate(HEIGHT)
        send(other, "What happened in 1789?")
        for page, number in ((one, 2), (other, 1)):
            pattern = rf"^Computing: this chat \d+ %, text {number} \d+ % of the time\.$"
            expect(page.locator("#lanes-text")).to_have_text(re.compile(pattern))
            expect(page.locator("#queue")).to_contain_text("2 running")
            assert page.locator("#lanes").evaluate(HEIGHT) == 2 * low
            page.wait_for_function(f"({DRAWN})(document.querySelector('#lanes')) > 0")  # in the next frame
        other.get_by_role("button", name="Stop").click()
        one.get_by_role("button", name="Stop").click()
        assert "What happened" not in one.content()
        send(other, "And before?")  # alone
        expect(other.locator("#lanes-text")).to_have_text(re.compile("^Computing: target"))


def test_a_closed_panel_asks_for_nothing(visit: Visits, url: str, slot: ScriptedSlot) -> None:
    page = visit(url, viewport={"width": 390, "height": 800})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    toggle = page.get_by_role("button", name="Live")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    ask(page, "Hello")
    assert not any("events" in one for one in asked)
    with page.expect_request("**/v1/duo/events"):
        toggle.click()
    expect(page.locator("#queue")).to_contain_text("0 running")
    # It has what the last answer was like.
    expect(page.locator("#lanes-text")).to_contain_text("Computing: target")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        toggle.click()
    page.reload()
    expect(page.get_by_role("complementary")).to_be_hidden()
    toggle.click()
    expect(page.get_by_role("complementary")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_be_hidden()
    expect(toggle).to_have_attribute("aria-expanded", "false")


def test_the_panel_reconnects_to_a_lead_that_was_restarted_and_waits_for_its_model(visit: Visits) -> None:
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
    with engine, Lead(port=lead.port) as again:
        other = visit(again.url)
        expect(other.locator("#model")).to_have_text("The model is still loading.")
        expect(other.get_by_role("button", name="Send")).to_be_disabled()
        again.load(engine)
        expect(other.locator("#model")).to_contain_text("scripted")
        expect(other.get_by_role("button", name="Send")).to_be_enabled()
        for each in (page, other):
            expect(each.locator("#context")).to_have_text("700 tokens")
        expect(told).to_be_hidden()
        answer(page).get_by_role("button", name="Retry").click()
        expect(text_of(page)).to_have_text(slot.text)


def test_names_of_backs_are_text(page: Any, slot: ScriptedSlot) -> None:
    back = {
        "id": 1, "name": "<b>x</b>\u202e", "model": "m" * 300, "in_use": True, "round_trip_ms": None,
        "verified": 10, "accepted": 5,
    }  # fmt: skip
    state = {
        "model": None, "draft": None, "lookup": True, "backs": [back],
        "queue": {
            "running": 1, "waiting": 2, "limit": 9,
            "texts": [{"id": 3, "prompt_tokens": 1500, "pauses": 0}, {"id": 2, "prompt_tokens": 5, "pauses": 1}],
        },
        "schedule": {"now": "off", "at_token": 3, "reason": "<i>"},
    }  # fmt: skip
    body = f"event: state\ndata: {json.dumps(state)}\n\n"
    page.route("**/v1/duo/events", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.reload()
    expect(page.locator("#backs tr")).to_contain_text("<b>x</b>U+202E")
    expect(page.locator("#backs tr")).to_contain_text("5 of 10")
    expect(page.locator("#reason")).to_have_text("Since token 3: <i>")
    expect(page.locator("#target")).to_have_text("loading …")
    expect(page.locator("#waiting")).to_have_text("text 3, prompt of 1,500 tokens; text 2, paused")

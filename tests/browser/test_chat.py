"""The chat on the page, with a real lead that writes with the demo pair."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duo.server.lead_server import Lead
from tests.browser.browsing import Visits, answer, ask, goes_on, send, stored, text_of, wait_for_end
from tests.browser.conftest import slow_lead
from tests.scripted import scripted_engine
from tests.serving import LeadProcess

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

QUESTION = "Write a long story about a lighthouse."
SHORT: dict[str, Any] = {"max_tokens": 24}


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    target, draft = demo_pair
    with slow_lead(target, "-md", draft, "-td", "1", "--schedule", "sync") as lead:
        yield lead


@pytest.fixture
def page(visit: Visits, lead: LeadProcess) -> Any:
    return visit(lead.url)


def set_options(page: Any, **options: object) -> None:
    page.get_by_role("button", name="Settings").click()
    for name, value in options.items():
        page.fill(f"#{name}", str(value))
    page.get_by_role("button", name="Done").click()


def test_an_answer_is_the_text_that_the_api_gives_with_the_origin_of_each_token(page: Any, lead: LeadProcess) -> None:
    set_options(page, **SHORT)
    ask(page, QUESTION)
    expected = lead.post("/v1/chat/completions", messages=[{"role": "user", "content": QUESTION}], **SHORT).json()
    message = stored(page)["messages"][1]
    assert message["content"] == expected["choices"][0]["message"]["content"]
    assert message["runs"][-1][0] == len(message["content"])
    assert {origin for _, origin in message["runs"]} > {"d"}
    expect(answer(page)).to_contain_text(message["content"].split("\n")[0].strip("*# "))
    expect(answer(page)).to_contain_text("24 tokens")
    expect(answer(page)).to_contain_text("limit of tokens")
    green = answer(page).locator(".from-draft").first
    plain = page.evaluate("getComputedStyle(document.body).color")
    assert green.evaluate("element => getComputedStyle(element).color") != plain
    assert "dotted" in green.evaluate("element => getComputedStyle(element).textDecoration")
    page.get_by_label("Colour tokens by origin").uncheck()
    assert green.evaluate("element => getComputedStyle(element).color") == plain
    expect(page.get_by_role("navigation").get_by_role("button", name=QUESTION, exact=True)).to_be_visible()


def test_editing_a_message_replaces_what_follows_it(page: Any) -> None:
    set_options(page, max_tokens=8)
    for text in ("One", "Two"):
        ask(page, text)
    edit, box = page.get_by_role("button", name="Edit").first, page.get_by_label("Edit the message")
    edit.click()
    expect(box).to_be_focused()
    expect(box).to_have_value("One")
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)
    edit.click()
    box.fill("Three")
    with page.expect_request("**/v1/chat/completions") as request:
        box.press("Enter")
    assert request.value.post_data_json["messages"] == [{"role": "user", "content": "Three"}]
    wait_for_end(page)
    expect(page.get_by_label("You", exact=True)).to_have_count(1)
    assert stored(page)["messages"][0]["content"] == "Three"


def test_an_answer_goes_on_while_another_conversation_is_shown_and_survives_a_reload(page: Any) -> None:
    send(page, QUESTION)
    expect(text_of(page)).not_to_be_empty()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("button", name=QUESTION, exact=True).click()
    goes_on(page)
    saved = "localStorage['duo:conversation:' + sessionStorage['duo:current']].includes('\"content\":\"')"
    page.wait_for_function(saved)
    before = stored(page)["messages"][1]["content"]
    page.reload()
    expect(answer(page)).to_contain_text("This answer is not complete")
    assert stored(page)["messages"][1]["content"].startswith(before)
    set_options(page, **SHORT)
    answer(page).get_by_role("button", name="Retry").click()
    expect(answer(page)).to_contain_text("24 tokens")


def test_settings_are_sent_and_kept(page: Any) -> None:
    options = {"system": "You are a cat.", "temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 4}
    set_options(page, **options)
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "Hello")
    body = request.value.post_data_json
    assert body.pop("messages") == [
        {"role": "system", "content": options.pop("system")},
        {"role": "user", "content": "Hello"},
    ]
    assert body == {**options, "stream": True, "stream_options": {"include_usage": True}, "duo": True}
    wait_for_end(page)
    page.reload()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Temperature")).to_have_value("0.5")
    expect(page.get_by_label("System prompt")).to_have_value("You are a cat.")


def test_conversations_are_kept_until_they_are_deleted(page: Any) -> None:
    set_options(page, max_tokens=4)
    for text in ("First", "Second"):
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator("#messages")).to_be_empty()
        ask(page, text)
    page.reload()
    page.get_by_role("button", name="First", exact=True).click()
    expect(page.get_by_label("You", exact=True)).to_contain_text("First")
    page.get_by_role("button", name="Delete First").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name="First", exact=True)).to_have_count(0)
    expect(page.locator("#messages")).to_be_empty()
    page.reload()
    expect(page.get_by_role("button", name="Second", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="First", exact=True)).to_have_count(0)
    assert page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('duo:conversation:')).length") == 1


def test_everything_works_with_the_keyboard_alone(page: Any) -> None:
    box, button = page.locator("#input"), partial(page.get_by_role, "button")
    page.wait_for_selector("#send:not([disabled])")
    expect(box).to_be_focused()
    for key in ("Hello", "Shift+Enter", "World", "Enter"):
        page.keyboard.press(key) if "Enter" in key else page.keyboard.type(key)
    expect(page.get_by_label("You", exact=True)).to_contain_text("Hello\nWorld")
    expect(text_of(page)).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(answer(page)).to_contain_text("Stopped.")
    button(name="Settings").press("Enter")
    expect(page.get_by_label("System prompt")).to_be_focused()
    page.get_by_label("Max tokens").focus()
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_hidden()
    expect(button(name="Settings")).to_be_focused()
    for name, element, text in (
        ("Retry", answer(page), "4 tokens"),
        ("New conversation", page.locator("#messages"), ""),
    ):
        button(name=name).press("Enter")
        expect(element).to_have_text(re.compile(text or "^$"))
        expect(box).to_be_focused()


def test_a_lead_with_a_key_is_asked_with_it(visit: Visits) -> None:
    engine, _ = scripted_engine()
    with engine, Lead(engine, port=0, api_keys=["right"]) as lead:
        page = visit(lead.url)
        dialog, key = page.get_by_role("dialog", name="API key"), page.get_by_label("Key", exact=True)
        expect(key).to_be_focused()
        page.keyboard.press("Escape")
        for _ in range(2):  # a dialog that was cancelled stays closed
            with page.expect_response("**/v1/duo/events"):
                pass
            expect(page.locator("#live-problem")).to_contain_text("This lead needs a key.")
            expect(dialog).to_be_hidden()
        send(page, "Hello")
        key.fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("This key is wrong")
        key.fill("right")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_be_hidden()
        expect(text_of(page)).not_to_be_empty()
        expect(page.locator("#context")).to_have_text("512 tokens")  # of the events
        page.reload()
        expect(page.locator("#model")).to_contain_text("context of 512 tokens")
        expect(dialog).to_be_hidden()
        assert "right" not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
        expect(visit(lead.url).get_by_role("dialog", name="API key")).to_be_visible()

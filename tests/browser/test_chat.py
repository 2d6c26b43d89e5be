"""The chat on the page, with a real lead that writes with the demo pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import SLOW, Visits, answer, send, stored, text_of, wait_for_end
from tests.serving import LeadProcess

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

QUESTION = "Write a long story about a lighthouse."
SHORT: dict[str, Any] = {"max_tokens": 24}


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    target, draft = demo_pair
    with LeadProcess(
        target, "-md", draft, "-td", "1", "-c", "2048", "--exact", "--schedule", "sync", before=SLOW
    ) as lead:
        yield lead
        assert lead.process.poll() is None
        assert not any("Traceback" in line for line in lead.lines)


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
    send(page, QUESTION)
    wait_for_end(page)
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


@pytest.mark.parametrize("by", ["button", "key"])
def test_an_answer_can_be_stopped_and_written_again(page: Any, by: str) -> None:
    send(page, QUESTION)
    expect(text_of(page)).not_to_be_empty()
    if by == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(answer(page)).to_contain_text("Stopped.")
    expect(page.locator("#announce")).to_have_text("The answer was stopped.")
    stopped = stored(page)["messages"][1]
    assert stopped["state"] == "stopped"
    assert stopped["content"]
    set_options(page, **SHORT)
    answer(page).get_by_role("button", name="Retry").click()
    expect(answer(page)).to_contain_text("24 tokens")
    messages = stored(page)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    start = min(len(stopped["content"]), len(messages[1]["content"]))
    assert messages[1]["content"][:start] == stopped["content"][:start]


def test_editing_a_message_replaces_what_follows_it(page: Any) -> None:
    set_options(page, max_tokens=8)
    for text in ("One", "Two"):
        send(page, text)
        wait_for_end(page)
    page.get_by_label("You", exact=True).first.get_by_role("button", name="Edit").click()
    box = page.get_by_label("Edit the message")
    expect(box).to_be_focused()
    expect(box).to_have_value("One")
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)
    page.get_by_label("You", exact=True).first.get_by_role("button", name="Edit").click()
    box.fill("Three")
    with page.expect_request("**/v1/chat/completions") as request:
        box.press("Enter")
    assert request.value.post_data_json["messages"] == [{"role": "user", "content": "Three"}]
    wait_for_end(page)
    expect(page.get_by_label("You", exact=True)).to_have_count(1)
    assert stored(page)["messages"][0]["content"] == "Three"


def test_what_there_is_of_an_answer_survives_a_reload(page: Any) -> None:
    send(page, QUESTION)
    expect(text_of(page)).not_to_be_empty()
    page.wait_for_function(
        "localStorage['duo:conversation:' + sessionStorage['duo:current']].includes('\"content\":\"')"
    )
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
        send(page, text)
        wait_for_end(page)
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


def test_an_answer_goes_on_while_another_conversation_is_shown(page: Any) -> None:
    send(page, QUESTION)
    expect(text_of(page)).not_to_be_empty()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("button", name=QUESTION, exact=True).click()
    n = len(text_of(page).inner_text())
    page.wait_for_function("n => document.querySelector('.assistant > .text').innerText.length > n", arg=n)
    page.get_by_role("button", name="Stop").click()
    expect(answer(page)).to_contain_text("Stopped.")


def test_everything_works_with_the_keyboard_alone(page: Any) -> None:
    page.wait_for_selector("#send:not([disabled])")
    expect(page.locator("#input")).to_be_focused()
    page.keyboard.type("Tell me a long story")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("about the sea.")
    page.keyboard.press("Enter")
    expect(page.get_by_label("You", exact=True)).to_contain_text("Tell me a long story\nabout the sea.")
    expect(text_of(page)).not_to_be_empty()
    expect(page.locator("#announce")).to_have_text("The answer begins.")
    page.keyboard.press("Escape")
    expect(answer(page)).to_contain_text("Stopped.")

    def tab_to(name: str) -> None:
        for _ in range(40):
            page.keyboard.press("Shift+Tab")
            if page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel") == name:
                return
        pytest.fail(f"Tab does not reach {name}")

    tab_to("Settings")
    page.keyboard.press("Enter")
    expect(page.get_by_label("System prompt")).to_be_focused()
    page.get_by_label("Max tokens").focus()
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_hidden()
    page.locator("#input").focus()
    tab_to("Retry")
    page.keyboard.press("Enter")
    expect(answer(page)).to_contain_text("4 tokens")
    expect(page.locator("#input")).to_be_focused()
    tab_to("New conversation")
    page.keyboard.press("Enter")
    expect(page.locator("#messages")).to_be_empty()
    expect(page.locator("#input")).to_be_focused()


def test_a_lead_with_a_key_is_asked_with_it(visit: Visits, demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[0], "-c", "512", "--api-key", "right") as lead:
        page = visit(lead.url)
        dialog = page.get_by_role("dialog", name="API key")
        expect(page.get_by_label("Key", exact=True)).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("This key is wrong")
        page.get_by_label("Key", exact=True).fill("right")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_be_hidden()
        set_options(page, max_tokens=4)
        send(page, "Hello")
        expect(answer(page)).to_contain_text("4 tokens")
        expect(page.locator("#context")).to_have_text("512 tokens")  # of the events
        page.reload()
        expect(page.locator("#model")).to_contain_text("context of 512 tokens")
        expect(dialog).to_be_hidden()
        assert "right" not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
        expect(visit(lead.url).get_by_role("dialog", name="API key")).to_be_visible()

"""Answers that are replaced, fail or stay empty: a scripted lead writes them."""

from typing import Any

import pytest

from tests.browser.browsing import answer, ask, send, stored, text_of, wait_for_end
from tests.scripted import ScriptedSlot

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect


@pytest.fixture
def page(page: Any, slot: ScriptedSlot) -> Any:
    """A conversation with one answer."""
    slot.text = "The first."
    ask(page, "Go on")
    slot.text = "The second."
    return page


def contents(page: Any) -> list[str]:
    return [message["content"] for message in stored(page)["messages"]]


@pytest.mark.parametrize(
    ("element", "call"), [("button >> text=Retry", "click"), (".edit:has([aria-label])", "requestSubmit")]
)
def test_what_is_done_twice_removes_one_answer(page: Any, slot: ScriptedSlot, element: str, call: str) -> None:
    page.get_by_role("button", name="Edit").click()
    page.locator(element).evaluate(f"element => {{ element.{call}(); element.{call}(); }}")
    expect(text_of(page)).to_have_text("The second.")
    wait_for_end(page)
    assert contents(page) == ["Go on", "The second."]
    assert len(slot.requests) == 2


def test_another_conversation_that_is_opened_during_retry_is_left_alone(page: Any, slot: ScriptedSlot) -> None:
    page.get_by_role("button", name="Retry").evaluate(
        "button => { button.click(); document.getElementById('new').click(); }"
    )
    expect(page.locator("#messages")).to_be_empty()
    page.get_by_role("button", name="Go on", exact=True).click()
    expect(text_of(page)).to_have_text("The first.")
    assert len(slot.requests) == 1


def test_errors_are_shown_and_an_answer_is_kept_if_retry_brings_nothing(page: Any, slot: ScriptedSlot) -> None:
    slot.error, slot.error_at, slot.n_step = ValueError("no more ideas"), 0, 3
    retry = answer(page).get_by_role("button", name="Retry")
    retry.click()
    expect(answer(page)).to_contain_text("The generation failed: no more ideas.")
    assert contents(page) == ["Go on", "The first."]
    page.reload()
    expect(text_of(page)).to_have_text("The first.")
    slot.error_at = 1
    retry.click()
    expect(text_of(page)).to_have_text("The")
    expect(answer(page)).to_contain_text("no more ideas")
    slot.error, slot.n_ctx = None, 64
    send(page, "long " * 100)
    expect(answer(page).locator(".failed")).to_contain_text("context")


def test_a_message_without_an_answer_is_not_sent_again(page: Any, slot: ScriptedSlot) -> None:
    slot.error, slot.error_at = ValueError("no more ideas"), 0
    send(page, "One")
    expect(answer(page)).to_contain_text("no more ideas")
    slot.error = None
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "Two")
    assert [each["content"] for each in request.value.post_data_json["messages"]] == ["Go on", "The first.", "Two"]
    wait_for_end(page)
    expect(page.get_by_role("button", name="Retry")).to_have_count(1)  # of the last answer
    expect(answer(page).get_by_role("button", name="Retry")).to_be_visible()

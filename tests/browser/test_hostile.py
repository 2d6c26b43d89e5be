"""What a model may write, shown by the page: a scripted lead writes it."""

import json
from typing import Any

import pytest

from tests.browser.browsing import Visits, answer, ask, overflow, stored, text_of
from tests.scripted import ScriptedSlot

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

PHONE = {"viewport": {"width": 320, "height": 640}, "is_mobile": True, "has_touch": True}


def shown(page: Any, slot: ScriptedSlot, text: str) -> Any:
    """The text of an answer."""
    slot.text = text
    return ask(page, "Go on")


def test_html_is_text(page: Any, slot: ScriptedSlot) -> None:
    text = "<script>window.hit = 1</script> <img src=x onerror='window.hit = 1'> <b>bold</b> &lt; <svg onload=hit>"
    assert shown(page, slot, text).inner_text() == text
    assert shown(page, slot, f"```html\n{text}\n```").locator("code").inner_text() == text
    assert page.evaluate("window.hit") is None
    assert answer(page).locator("script, img, svg, b").count() == 0


def test_links_go_only_to_the_web_and_open_elsewhere(page: Any, slot: ScriptedSlot) -> None:
    bad = "[a](javascript:alert(1)) [b](JaVaScRiPt:x) [c](data:text/html,x) [d](/v1/models) [e](vbscript:x) <file:///x>"
    assert shown(page, slot, bad).locator("a").count() == 0
    good = "[site](https://example.org/a_(b)) <mailto:a@example.org> https://example.org/x_y. ![i](http://example.org/i.png)"
    links = shown(page, slot, good).locator("a")
    urls = ["https://example.org/a_(b)", "mailto:a@example.org", "https://example.org/x_y", "http://example.org/i.png"]
    assert links.evaluate_all("all => all.map(a => a.href)") == urls
    assert links.evaluate_all("all => all.map(a => a.rel + a.target)") == ["noopener noreferrer_blank"] * 4
    assert answer(page).locator("img").count() == 0


def test_bidi_controls_are_visible_and_do_not_reorder_the_page(page: Any, slot: ScriptedSlot) -> None:
    text = shown(page, slot, "\u200e\ufeff\U000e0041user \u202etxt.exe\u202c and `code\u2066x` \x1b[31m שלום")
    assert text.inner_text() == "U+200EU+FEFFU+E0041user U+202Etxt.exeU+202C and codeU+2066x U+001B[31m שלום"
    assert text.locator(".control").count() == 7
    assert text.locator("p").get_attribute("dir") == "auto"
    assert stored(page)["messages"][1]["content"].count("\u202e") == 1
    ask(page, "my \u202emessage")
    expect(page.get_by_label("You", exact=True).last).to_contain_text("my U+202Emessage")


MARKS = {"x": "x", "words": "x ", "quotes": ">", "brackets": "[", "bold": "**a", "backticks": "`"}
LONG = {name: (mark * 1_000_000)[:1_000_000] for name, mark in MARKS.items()}
LONG |= {"a fence": "```" + " " * 290_000 + "`", "tildes": "~" * 290_000 + "`", "more bold": "**a" * 90_000}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_line_of_a_megabyte_is_shown_and_the_page_goes_on(page: Any, slot: ScriptedSlot, text: str) -> None:
    slot.n_step = 16_384
    slot.n_ctx = 3_000_000
    element = shown(page, slot, text)
    assert stored(page)["messages"][1]["content"] == text
    assert len(text) < 1_000_000 or element.evaluate("element => element.textContent.length") > 900_000
    assert overflow(page) == 0
    page.get_by_role("button", name="New conversation").click()
    assert shown(page, slot, "The next.").inner_text() == "The next."


def test_a_storage_that_is_full_is_reported_and_nothing_is_lost(page: Any, slot: ScriptedSlot) -> None:
    page.evaluate(
        """() => {
            let text = "x".repeat(1 << 22);
            for (let i = 0; text.length; i++) {
                try { localStorage.setItem(`filled:${i}`, text); } catch { text = text.slice(text.length / 2 + 1); }
            }
        }"""
    )
    expect(shown(page, slot, "This is not saved.")).to_have_text("This is not saved.")
    expect(page.get_by_role("alert").filter(has_text="no room")).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    page.get_by_role("button", name="Go on", exact=True).click()
    expect(answer(page)).to_contain_text("This is not saved.")
    page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('filled:')).map(k => delete localStorage[k])")
    shown(page, slot, "This is.")
    expect(page.get_by_role("alert").filter(has_text="no room")).to_be_hidden()
    page.reload()
    expect(answer(page)).to_contain_text("This is.")


def test_reasoning_and_tool_calls(page: Any, slot: ScriptedSlot) -> None:
    chunks = [
        {"delta": {"reasoning_content": "Let me **think**."}},
        {"delta": {"content": "The answer."}},
        {"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_<b>", "arguments": '{"city": '}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    events = "".join(f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
    assert shown(page, slot, "").inner_text() == "The answer."
    reasoning = answer(page).locator("details")
    expect(reasoning.locator("p")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator("strong")).to_have_text("think")
    expect(answer(page)).to_contain_text("Tool call: get_<b>")
    expect(answer(page).locator(".call code")).to_have_text('{\n  "city": "Paris"\n}')


def test_small_windows_and_zoom_show_wide_texts_without_a_horizontal_scroll(
    visit: Visits, url: str, slot: ScriptedSlot
) -> None:
    page = visit(url, **PHONE)
    table = "| " + " | ".join(["heading"] * 12) + " |\n" + "|---" * 12 + "|\n" + "| cell " * 12 + "|"
    word = "w" * 300
    shown(page, slot, f"# {word}\n\n{word}\n\n- {word}\n\n> {word}\n\n`{word}`\n\n```\n{word}\n```\n\n{table}")
    for width, height in ((640, 400), (320, 256), (320, 640)):
        page.set_viewport_size({"width": width, "height": height})
        assert overflow(page) == 0
        assert page.evaluate("document.querySelector('#scroller').scrollWidth") <= width
        expect(page.locator("#input")).to_be_in_viewport()
        for name in ("Settings", "Done"):
            page.get_by_role("button", name=name).click()
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_role("complementary")).to_be_visible()
    page.get_by_role("button", name="Chats").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    assert overflow(page) == 0
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()


def test_conversations_move_to_another_browser(visit: Visits, url: str, slot: ScriptedSlot, tmp_path: Any) -> None:
    page = visit(url)
    shown(page, slot, "A **fine** answer.")
    page.get_by_role("button", name="Settings").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export conversations").click()
    download.value.save_as(tmp_path / "export.json")
    (tmp_path / "other.json").write_text("[1]")
    other = visit(url)
    other.get_by_role("button", name="Settings").click()
    other.set_input_files("#import-file", tmp_path / "other.json")
    expect(other.get_by_role("dialog")).to_contain_text("not an export")
    other.set_input_files("#import-file", tmp_path / "export.json")
    expect(other.get_by_role("dialog")).to_contain_text("1 conversation was imported.")
    other.get_by_role("button", name="Done").click()
    other.get_by_role("button", name="Go on", exact=True).click()
    expect(text_of(other).locator("strong")).to_have_text("fine")

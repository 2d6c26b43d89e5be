"""The page for everyone: names, labels, contrast, focus, zoom, and the settings of the browser that it follows."""

from typing import Any

import pytest

from tests.browser.browsing import ask
from tests.scripted import ScriptedSlot

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

TEXT = """# Heading

A **bold** word, a [link](https://example.org), `code` and \u202econtrol.

> A quote

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
print("Hello")
```
"""
CONTROLS = {"button", "link", "textbox", "checkbox", "spinbutton", "DisclosureTriangle", "img", "image", "dialog"}
# Texts with too little contrast to what is behind them, each as [text, ratio].
FAINT = """() => {
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = (colour) => {
        const [r, g, b] = colour.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        if (!element) return [255, 255, 255];
        const [r, g, b, a = 1] = parse(getComputedStyle(element).backgroundColor);
        return a === 1 ? [r, g, b] : behind(element.parentElement);
    };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(":disabled")) continue;
        const [a, b] = [parse(getComputedStyle(element).color), behind(element)].map(luminance);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) faint.push([walker.currentNode.data.trim(), ratio]);
    }
    return faint;
}"""


@pytest.fixture
def page(page: Any, slot: ScriptedSlot) -> Any:
    slot.text = TEXT
    ask(page, "Hello")
    return page


def nodes(page: Any, *roles: str) -> list[dict[str, Any]]:
    """Those of these roles in the accessibility tree as the browser computes it."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    return [node for node in tree["nodes"] if not node["ignored"] and node["role"]["value"] in roles]


@pytest.mark.parametrize("dialog", ["", "settings", "key-dialog", "delete-dialog"])
def test_every_control_has_a_name(page: Any, dialog: str) -> None:
    if dialog:
        page.evaluate("id => document.getElementById(id).showModal()", dialog)
    found = nodes(page, *CONTROLS)
    assert len(found) >= (2 if dialog else 15)
    assert not [node["role"] for node in found if not node.get("name", {}).get("value", "").strip()]
    unlabelled = """[...document.querySelectorAll("input, textarea")].filter(
        (field) => !field.labels.length && !field.ariaLabel).map((field) => field.id)"""
    assert page.evaluate(unlabelled) == []


def test_the_structure_and_that_nothing_moves(page: Any) -> None:
    landmarks = ("banner", "navigation", "main", "complementary")
    assert [node["role"]["value"] for node in nodes(page, *landmarks)] == list(landmarks)
    first, *others = [node["properties"][0]["value"]["value"] for node in nodes(page, "heading")]
    assert first == 1 < min(others)
    references = """["aria-labelledby", "aria-describedby", "aria-controls", "for"].flatMap((name) =>
        [...document.querySelectorAll(`[${name}]`)].map((element) => element.getAttribute(name))
    ).filter((id) => document.querySelectorAll(`[id="${id}"]`).length !== 1)"""
    assert page.evaluate(references) == []
    assert page.evaluate("document.documentElement.lang") == "en"
    moving = """[...document.querySelectorAll("*")].map((element) => getComputedStyle(element)).filter((style) =>
        parseFloat(style.transitionDuration) || style.animationName !== "none" || style.scrollBehavior === "smooth"
    ).length"""
    assert page.evaluate(moving) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert bright == (scheme == "light")
    assert page.evaluate(FAINT) == []
    page.get_by_role("button", name="Settings").click()
    assert page.evaluate(FAINT) == []
    page.evaluate("document.querySelector('#settings h2').style.color = 'var(--background)'")
    assert page.evaluate(FAINT), "the check finds nothing"


def test_focus_follows_the_order_of_the_page_and_is_visible(page: Any) -> None:
    page.locator("#nav-toggle").evaluate("element => { element.tabIndex = -1; element.style.display = 'block'; }")
    page.locator("#nav-toggle").focus()
    page.keyboard.press("Shift+Tab")
    skip = page.get_by_role("link", name="Skip to the message")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["width"] > 50
    expected = [
        "Settings", "Live", "New conversation", "Hello", "Delete Hello", "Messages", "Edit", "Copy", "link", "Table",
        "Copy code", 'print("Hello")', "Retry", "Copy", "Message", "Send", "Colour tokens by origin",
    ]  # fmt: skip
    order = []
    seen = """() => {
        const element = document.activeElement;
        const style = getComputedStyle(element);
        const name = element.ariaLabel || element.textContent.trim() || element.labels?.[0].textContent.trim();
        return [name, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
    }"""
    for _ in expected:
        page.keyboard.press("Tab")
        name, is_visible = page.evaluate(seen)
        assert is_visible, name
        order.append(name)
    assert order == expected
    skip.press("Enter")
    expect(page.locator("#input")).to_be_focused()


def test_the_ends_of_an_answer_are_announced_and_not_its_tokens(page: Any, slot: ScriptedSlot) -> None:
    page.locator("#announce").evaluate(
        "e => { window.said = []; new MutationObserver(() => said.push(e.textContent)).observe(e, {childList: true}); }"
    )
    ask(page, "Hello")
    begins, ends = page.evaluate("said")
    assert begins == "The answer begins."
    assert ends.startswith("The answer is complete")
    assert page.locator("#messages [aria-live]").count() == 0


def test_a_text_can_be_copied(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'print("Hello")'
    page.evaluate("delete Clipboard.prototype.writeText")  # as on a page without HTTPS
    page.get_by_label("Answer", exact=True).get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("navigator.clipboard.readText()") == TEXT

"""The files of the page: small, without anything inline or from outside, and with colours that can be read."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

MOST_BYTES = 150_000
CONTENTS = {file.name: file.read_text() for file in (files("duo.server") / "assets").iterdir() if file.is_file()}
STYLE = CONTENTS["style.css"]
TEXTS = ("text", "muted", "accent", "draft", "lookup", "wrong")
SURFACES = ("background", "panel", "raised")
LEAST_OF_TEXT, LEAST_OF_EDGES = 4.5, 3.0  # WCAG 2.2, AA: 1.4.3 and 1.4.11


def colours(scheme: str) -> dict[str, str]:
    """The custom properties that are colours."""
    light, _, dark = STYLE.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found if scheme == "light" else found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark))


def luminance(colour: str) -> float:
    def linear(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_on_every_surface(scheme: str) -> None:
    found = colours(scheme)
    pairs = [(found[text], found[surface]) for text in TEXTS for surface in SURFACES]
    pairs.append((found["on-accent"], found["accent"]))
    assert min(contrast(*pair) for pair in pairs) >= LEAST_OF_TEXT
    edges = [contrast(found["edge"], found[surface]) for surface in ("background", "panel")]
    assert min(edges) >= LEAST_OF_EDGES


def test_both_schemes_have_all_colours_and_no_rule_has_another() -> None:
    light, dark = colours("light"), colours("dark")
    assert set(light) == {*TEXTS, *SURFACES, "line", "edge", "on-accent"}
    same = [name for name in light if light[name] == dark[name]]
    assert not same
    rules = re.sub(r"--[\w-]+: [^;]+;", "", STYLE)
    assert not re.search(r":[^;{}]*#[0-9a-f]{3,8}\b", rules)


def test_the_page_is_small() -> None:
    assert sum(len(content.encode()) for content in CONTENTS.values()) <= MOST_BYTES


def test_nothing_is_inline() -> None:
    page = CONTENTS["index.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="/page/app.js">']
    assert "</script>" in page.partition("<script")[2][:60]


def test_nothing_comes_from_outside() -> None:
    for name, content in CONTENTS.items():
        outside = set(re.findall(r"https?://[\w.]+", content)) - {"http://www.w3.org"}
        assert not outside, name
        assert "import(" not in content, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.(write|cookie)|eval\(", content), name


def test_every_file_is_used() -> None:
    all_code = "".join(CONTENTS.values())
    unused = [name for name in CONTENTS if name != "index.html" and not re.search(rf'/{re.escape(name)}"', all_code)]
    assert not unused


def test_every_element_that_scripts_name_exists() -> None:
    ids = set(re.findall(r'id="([\w-]+)"', CONTENTS["index.html"]))
    for name, content in CONTENTS.items():
        if name.endswith(".js"):
            named = set(re.findall(r'(?:\$|put)\("([\w-]+)"', content))
            assert named <= ids, name

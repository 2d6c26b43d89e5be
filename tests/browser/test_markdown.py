"""The page's Markdown, rendered in a browser: its elements, and the same ones however the text arrives."""

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

# Renders a text that arrives in pieces: [texts so far, runs] -> HTML after each.
_RENDER = """async ([texts, runs]) => {
    const { MarkdownView } = await import("/page/markdown.js");
    const element = document.createElement("div");
    const view = new MarkdownView(element);
    for (const text of texts) view.update(text, runs);
    return element.innerHTML.replaceAll(' dir="auto"', "");
}"""
_PIECES = (
    "word", " ", " ", "\n", "\n", "\n\n", "**", "*", "_", "`", "```", "```\n", "- ", "  - ", "1. ", "10) ", "# ", "> ",
    "> > ", "| a | b |\n|---|--:|\n", "|", "---", "~~", "[", "](https://example.org)", "(", ")", "!", "<",
    "https://example.org/",     "\\", "    ", "\t", "é", "😀", "\u202e", "שלום", "\r\n", "***", "+ ",
)  # fmt: skip


CASES = Path(__file__).with_name("markdown.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n\n====\n\n")


def rendered(page: Any, *texts: str, runs: Any = ()) -> str:
    return str(page.evaluate(_RENDER, [list(texts), list(runs)]))


@pytest.mark.parametrize("case", CASES)
def test_elements(page: Any, case: str) -> None:
    text, html = case.split("\n=>\n")
    assert rendered(page, text) == html


def test_origins_do_not_break_the_markdown(page: Any) -> None:
    text = "a **bold** word and `code`"
    html = rendered(page, text, runs=[[4, "d"], [14, "l"], [15, "t"], [len(text), "d"]])
    assert html == (
        '<p><span class="from-draft">a</span> <strong><span class="from-lookup">bold</span></strong>'
        ' <span class="from-lookup">wor</span>d <span class="from-draft">and</span> '
        '<code><span class="from-draft">code</span></code></p>'
    )


def test_origins_are_counted_in_code_points(page: Any) -> None:
    script = """async ([text, sources]) => {
        const { addOrigins } = await import("/page/text.js");
        const runs = [[1, "t"]];
        addOrigins(runs, "x" + text, 1, sources);
        return runs;
    }"""
    sources = [["draft", 2], ["draft", 1], ["lookup", 1]]
    assert page.evaluate(script, ["a😀b😀c", sources]) == [[1, "t"], [5, "d"], [7, "l"], [8, "t"]]


def test_a_text_is_rendered_the_same_however_it_arrives(page: Any) -> None:
    dice = random.Random(5)
    for _ in range(150):
        pieces = [dice.choice(_PIECES) for _ in range(dice.randint(1, 60))]
        texts = ["".join(pieces[: n + 1]) for n in range(len(pieces))]
        n = len(texts[-1].encode("utf-16-le")) // 2
        ends = sorted({dice.randint(1, n) for _ in range(5)} | {n})
        runs = [[end, "dlt"[i % 3]] for i, end in enumerate(ends)]
        assert rendered(page, *texts, runs=runs) == rendered(page, texts[-1], runs=runs), repr(texts[-1])


@pytest.mark.parametrize(
    "text", [">", "> ", "- ", "[", "](", "**a ", "*a_b", "`a``b", "<http://", "|a\n|-", "1. a\n", "~~a"]
)
def test_deep_nesting_is_bounded(page: Any, text: str) -> None:
    deep = """html => {
        const element = document.createElement("div");
        element.innerHTML = html;
        return element.querySelector("* ".repeat(60)) !== null;
    }"""
    assert not page.evaluate(deep, rendered(page, text * 5000))
    assert page.evaluate(deep, "<b>" * 60), "the check finds nothing"

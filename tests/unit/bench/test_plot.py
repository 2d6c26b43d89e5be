"""The picture: it is drawn from real figures, says what was measured, and hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.bench.plot import draw
from duo.bench.results import Results
from tests.unit.bench.samples import ASYNC, FACTS, PLAIN, metrics, results, sample


def measured() -> Results:
    found = results()
    found.add(sample(PLAIN, 3, "list", 100, metrics=metrics()))
    found.add(sample(ASYNC, 3, "list", 130, metrics=metrics()))
    return found


def test_the_picture_says_what_was_measured(tmp_path: Path) -> None:
    draw(tmp_path / "out.svg", measured(), FACTS)
    picture = (tmp_path / "out.svg").read_text(encoding="utf-8")
    for words in (
        "duo bench: large.gguf with small.gguf",
        "4 rounds of 64 greedy tokens on A processor, 2 cores, 2026-11-20",
        "Speed-up over plain (95 % interval)",
        "k: most candidates at once",
        "T(n): the target's decode of n tokens",
        "ms (median)",
        "Acceptance by position",
        "% accepted",
        "The beginning of a text: async k=auto, list",
        ">ms<",
        ">decode<",
        ">target<",
        ">draft<",
    ):
        assert words in picture, words


def test_the_same_results_are_the_same_picture(tmp_path: Path) -> None:
    draw(tmp_path / "a.svg", measured(), FACTS)
    draw(tmp_path / "b.svg", measured(), FACTS)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("found", [measured(), results()], ids=["all", "without events"])
def test_it_can_be_a_png(tmp_path: Path, found: Results) -> None:
    draw(tmp_path / "out.png", found, FACTS)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_draft_it_says_so(tmp_path: Path) -> None:
    alone = Results([PLAIN])
    alone.add(sample(PLAIN, 0, "chat", 100))
    facts = FACTS | {"models": FACTS["models"] | {"draft": None}}
    draw(tmp_path / "out.svg", alone, facts)
    picture = (tmp_path / "out.svg").read_text(encoding="utf-8")
    assert "duo bench: large.gguf<" in picture
    assert "No draft worked in these runs" in picture

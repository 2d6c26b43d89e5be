"""The picture of a benchmark: it is drawn from the figures, and names what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.bench.samples import ASYNC, FACTS, PLAIN, collect, metrics, results, sample

draw = pytest.importorskip("duo.bench.plot", exc_type=ImportError).draw  # needs matplotlib

NAMED = (
    "duo bench: large.gguf with small.gguf", "4 rounds of 64 greedy tokens on A processor, 2 cores, 2026-11-20",
    "Speed-up over plain (95 % interval)", "k: maximum candidates per batch", "T(n): target decode of n tokens",
    "ms (median)", "Acceptance by position", "% accepted", "Timeline of the first decodes: async k=auto, list", ">ms<",
    ">decode<", ">target<", ">draft<",
)  # fmt: skip


def test_the_picture_names_what_was_measured(tmp_path: Path) -> None:
    found = results()
    for contestant, rate in ((PLAIN, 100), (ASYNC, 130)):
        found.add(sample(contestant, 3, "list", rate, metrics=metrics()))
    for name in ("a.svg", "b.svg"):
        draw(tmp_path / name, found, FACTS)
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert [words for words in NAMED if words not in picture] == []
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == picture, "the same results are the same picture"


def test_a_png_without_a_draft(tmp_path: Path) -> None:
    alone = collect([PLAIN], sample(PLAIN, 0, "chat", 100))
    draw(tmp_path / "out.png", alone, FACTS | {"models": FACTS["models"] | {"draft": None}})
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")

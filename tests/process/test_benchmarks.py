"""What the benchmarks make of figures: tables, bars, prompts. Their figures themselves are not tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.backs import write_halves
from benchmarks.ratios import show
from benchmarks.run import prompts_file
from benchmarks.tables import TABLES, backs_table, table
from duo.bench.prompts import parse_prompts
from tests.command import ROOT

ROW: dict[str, Any] = {
    "mode": "sync", "k": "4", "threads": "2/2", "tokens_per_s": 50.04, "tokens_per_s_lower_quartile": 49.0,
    "tokens_per_s_upper_quartile": 51.26, "speed_up": 1.25, "speed_up_low": None, "speed_up_high": None,
    "accept_rate": 0.754, "tokens_per_decode": None, "hidden": 0.0,
}  # fmt: skip


def test_a_table_has_what_was_measured_and_why_the_rest_is_blank() -> None:
    measured = {"call": "CPU only", "blank": None, "modes": ("sync",), "rows": [ROW]}
    blank = {"call": "split", "blank": "no GPU", "modes": ("plain", "auto"), "rows": []}
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table(TABLES["placement"], [measured, blank])
    ]
    assert cells[0] == ["", "threads", "tokens/s", "over plain", "accept %"]
    assert cells[2:] == [
        ["CPU only: sync k=4", "2/2", "50.0 (49.0–51.3)", "1.25", "75"],
        ["split: plain (no GPU)", "", "", "", ""],
        ["split: auto (no GPU)", "", "", "", ""],
    ]
    schedules = table(TABLES["schedules"], [{**measured, "call": ""}])
    assert [cell.strip() for cell in schedules[2].strip("|").split("|")][-2:] == ["", "0"]


def test_backs_are_medians_over_the_texts() -> None:
    texts: list[dict[str, Any]] = [
        {"first": rate, "second": 2.0 * rate, "whole": 1.5 * rate, "differs_at": place}
        for rate, place in ((10, None), (30, 7), (11, None))
    ]
    line = backs_table({"absent": texts})[2]
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["absent", "11.0", "22.0", "16.5", "2 of 3"]


def test_the_halves_of_a_text() -> None:
    class Stream:
        """Eight tokens: one in each tenth of a second, and twice as fast after the fourth."""

        n_tokens = 4
        running = True

        def __init__(self) -> None:
            self.times = [0.0, 0.1, 0.2, 0.3]

        def wait_for_pieces(self, n: int) -> None:
            raise AssertionError(n)

        def finish(self) -> str:
            self.times += [0.35, 0.4, 0.45, 0.5]
            return "text"

    class Lead:
        def stream(self, text: str, n_tokens: int) -> Stream:
            assert (text, n_tokens) == ("a prompt", 8)
            return Stream()

    def midway() -> None:
        called.append(1)

    called: list[int] = []
    clock = pytest.MonkeyPatch()
    clock.setattr("benchmarks.backs.time.monotonic", lambda: 0.3)
    file: Any = type("File", (), {"read_text": lambda self, encoding: "a prompt"})()
    lead: Any = Lead()
    try:
        halves = write_halves(lead, file, 8, midway)
    finally:
        clock.undo()
    assert called == [1]
    assert (halves.first, halves.second, halves.whole) == pytest.approx((10, 20, 14))
    assert halves.text == "text"


def test_a_bar_is_a_ratio_of_medians_and_says_how_sure_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"a": {"p": [10.0, 20.0, 90.0], "q": [5.0, 5.0, 5.0]}, "b": {"p": [10.0, 10.0, 10.0], "q": [5.0, 5.0, 5.0]}}
    found: Any = show(rates, {"a over b": ("a", "b", 1.5)}, "a pair")
    assert found["ratios"]["a over b"] == pytest.approx(2**0.5)
    said = capsys.readouterr().out
    assert "1.414  at least 1.5 MISSED" in said
    assert "run by run 1.619 (" in said  # the sixth root of 18


def test_prompts_reach_the_bench_as_they_are(tmp_path: Path) -> None:
    texts = {"one": "A line.\nAnother one.\n", "two": "[not a category] \\ and é"}
    files = []
    for name, text in texts.items():
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(f"{text}\n", encoding="utf-8")
    found = parse_prompts(prompts_file(files, tmp_path).read_text(encoding="utf-8"))
    assert {prompt.category: prompt.text for prompt in found} == texts


def test_a_table_of_programs_needs_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--table", "peers", "--peers", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"run: {tmp_path} has no programs: bash benchmarks/peers.sh builds them\n"

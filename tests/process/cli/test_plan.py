"""`duo plan`: predictions from figures alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import ROOT, duo
from tests.unit.cli.table import Row, table

SIZES = "1:490,2:495,4:520,5:540,8:650"
REST = ("--draft-ms", "25", "--accept", "0.8")


def plan(*arguments: str | Path) -> tuple[dict[str, Row], str]:
    run = duo("plan", *arguments)
    assert (run.status, run.stderr.count("\n")) == (0, 1), run.stderr
    return table(run.text)


def test_three_numbers() -> None:
    rows, best = plan("--target-ms", "490", *REST)
    assert rows["plain"] == (2.04, 1.0, "the target alone")
    for row in rows.values():
        assert row.factor == pytest.approx(row.rate / rows["plain"].rate, abs=0.01)
    assert rows["plain"].rate < rows["taking turns"].rate < rows["overlapped"].rate <= rows["limit"].rate
    assert re.fullmatch(r"draft \d+, then verify", rows["taking turns"].words)
    assert re.fullmatch(r"wait for \d+, verify up to \d+", rows["overlapped"].words)
    assert re.fullmatch(r"best: --schedule async; the gain stops at --draft \d+", best)


def test_what_is_known_of_other_sizes_counts() -> None:
    rows, _ = plan("--target-ms", SIZES, *REST)
    dear, _ = plan("--target-ms", "1:490,2:900,16:7000", *REST)
    assert rows["plain"] == dear["plain"]
    assert dear["overlapped"].rate < rows["overlapped"].rate
    assert dear["limit"].rate < rows["limit"].rate


def test_the_figures_are_repeated_on_stderr() -> None:
    run = duo("plan", "--target-ms", SIZES, *REST)
    said = "target 490, 495, 520, 540, 650 ms for 1, 2, 4, 5, 8 tokens at once; draft 25 ms per token; 80 % accepted\n"
    assert run.stderr == said


def test_a_draft_that_is_never_right_is_best_left_out() -> None:
    rows, best = plan("--target-ms", SIZES, "--draft-ms", "25", "--accept", "0")
    assert best == "best: --schedule off"
    assert rows["limit"].factor == 1.0
    assert rows["taking turns"].words == "no drafts"


def test_a_draft_that_is_always_right_reaches_the_limit() -> None:
    rows, best = plan("--target-ms", "490", "--draft-ms", "25", "--accept", "1")
    assert rows["overlapped"].rate == pytest.approx(rows["limit"].rate, rel=0.1)
    assert best.startswith("best: --schedule async")


def test_a_better_draft_is_never_slower() -> None:
    rates = [
        plan("--target-ms", SIZES, "--draft-ms", draft_ms, "--accept", accept)[0]["overlapped"].rate
        for accept, draft_ms in (("0.5", "100"), ("0.7", "100"), ("0.7", "30"), ("0.9", "30"), ("0.9", "5"))
    ]
    assert rates == sorted(rates)


@pytest.mark.parametrize("n", ["1", "3"])
def test_no_more_is_verified_than_draft_allows(n: str) -> None:
    rows, best = plan("--target-ms", SIZES, *REST, "--draft", n)
    assert rows["taking turns"].words == f"draft {n}, then verify"
    assert rows["overlapped"].words.endswith(f"verify up to {n}")
    assert best.endswith(f"the gain stops at --draft {n}")
    assert rows["overlapped"].rate < plan("--target-ms", SIZES, *REST)[0]["overlapped"].rate


@pytest.mark.parametrize(
    "content",
    [
        "1 490\n2 495\n4 520\n5 540\n8 650\n",
        "n,ms\n1,490\n2,495\n4,520\n5,540\n8,650\n",
        "# measured\n\n8, 650\n5, 540\n4, 520\n2, 495\n1, 490",
        "tokens\tms\n1\t490.0\n2\t495\n4\t520\n5\t540\n8\t6.5e2\n",
    ],
)
def test_a_table_says_the_same_as_the_option(tmp_path: Path, content: str) -> None:
    path = tmp_path / "times"
    path.write_text(content)
    assert plan("--table", path, *REST) == plan("--target-ms", SIZES, *REST)


def test_the_readme_shows_what_the_command_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    duo (plan .+)$", readme, re.MULTILINE)
    (shown,) = re.findall(r"```text\n(plain .+?)```", readme, re.DOTALL)
    expected, best = table(shown)
    rows, said = plan(*command.split()[1:])
    assert said == best
    for name, row in rows.items():
        assert row.words == expected[name].words
        assert row.rate == pytest.approx(expected[name].rate, rel=0.01)

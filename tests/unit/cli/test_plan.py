"""`duo plan`: predictions from figures, files and the statistics of a run."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.cli.commands.plan import foretell, informed, plan
from duo.cli.options.by_command import PlanOptions
from duo.errors import UsageError
from duo.spec.pair import Machine
from duo.spec.schedule import Schedule
from tests.command import ONE_EACH, ROOT, Argument, assert_refused
from tests.unit.cli.runner import duo
from tests.unit.cli.table import Row, table

SIZES = "1:490,2:495,4:520,5:540,8:650"
REST = ("--draft-ms", "25", "--accept", "0.8")

# All that is read of a run's statistics.
POLICY: dict[str, Any] = {
    "curve_ms": {"alone": [10.0, 11.0, 12.0], "concurrent": [12.0, 12.0, 12.0]},
    "draft_ms": {"alone": 2.0, "concurrent": 3.0},
    "acceptance": 0.5,
}


def predict(*arguments: Argument) -> tuple[dict[str, Row], str]:
    run = duo("plan", *arguments)
    assert (run.status, run.stderr.count("\n")) == (0, 1), run.stderr
    return table(run.text)


def statistics(tmp_path: Path, **figures: Any) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"policy": POLICY | figures}))
    return path


def test_three_figures() -> None:
    rows, best = predict("--target-ms", "490", *REST)
    assert rows["plain"] == (2.04, 1.0, "the target alone")
    plain, turns, both, limit = rows.values()
    assert plain.rate < turns.rate < both.rate <= limit.rate
    assert re.fullmatch(r"draft \d+, then verify", turns.words)
    assert re.fullmatch(r"wait for \d+, verify up to \d+", both.words)
    assert re.fullmatch(r"best: --schedule async; --draft \d+ is sufficient", best)


def test_forms_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "times"
    said = (
        "target 490, 495, 520, 540, 650 ms for batches of 1, 2, 4, 5, 8 (assumed beyond 8); "
        "draft 25 ms per token, 32.5 ms for two (assumed); 80 % accepted\n"
    )
    for content in (
        "n,ms\n1,490\n2,495\n4,520\n5,540\n8,650\n",
        "# measured\n\n8, 650\n5, 540\n4, 520\n2, 495\n1, 490",
        "tokens\tms\n1\t490.0\n2\t495\n4\t520\n5\t540\n8\t6.5e2\n",
    ):
        path.write_text(content)
        assert duo("plan", "--table", path, *REST).stderr == said
    assert duo("plan", "--target-ms", SIZES, *REST).stderr == said


def test_the_documents_show_what_the_command_prints() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    tables = [(text, found) for text in texts for found in re.finditer(r"```text\n(plain .+?)```", text, re.DOTALL)]
    assert tables
    for text, shown in tables:
        command = re.findall(r"^    duo (plan [^#\n]+)", text[: shown.start()], re.MULTILINE)[-1]
        expected, best = table(shown[1])
        rows, said = predict(*command.split()[1:])
        assert said == best
        for name, row in rows.items():
            assert row.words == expected[name].words
            assert row.rate == expected[name].rate


def test_what_was_not_measured_is_called_assumed() -> None:
    figures = ("--target-ms", "1:100,16:200", "--draft-ms", "10", "--accept", "0.8")
    assert "(assumed beyond 16)" in duo("plan", *figures).stderr
    given = duo("plan", *figures, "--draft", "15", "--draft-pair-ms", "17").stderr
    assert "assumed" not in given
    assert "draft 10 ms per token, 17 ms for two;" in given
    sequential = [predict(*figures, "--draft-pair-ms", two)[0]["sequential"].rate for two in ("10", "19")]
    assert sequential[0] > sequential[1]


RATE = st.floats(0.0001, 10)


@given(
    growth=st.lists(st.sampled_from([0.0, 0.01, 0.1, 1.0]), min_size=16, max_size=16),
    draft_s=RATE,
    slower=st.floats(1.0, 4.0),
    acceptance=st.floats(0.0, 1.0),
    n_max=st.integers(1, 16),
)
def test_no_forecast_exceeds_the_limit(
    growth: list[float], draft_s: float, slower: float, acceptance: float, n_max: int
) -> None:
    target_s = list(accumulate([1.0, *growth]))
    machine = Machine(target_s, draft_s, [slower * s for s in target_s], slower * draft_s)
    found = foretell(informed(machine, acceptance, n_max), constant=True, prepares=False)
    assert found.rates[Schedule.SYNC] >= found.rates[Schedule.OFF] == pytest.approx(1.0)
    assert max(found.rates.values()) <= found.limit
    expected = list(accumulate(acceptance**k for k in range(n_max + 1)))
    most = min(1 / draft_s, max(tokens / s for tokens, s in zip(expected, target_s, strict=False)))
    assert found.limit <= max(1.0, most) + 0.01


# Drafts with a device of their own, and on other machines


def test_outcomes_are_prepared_where_several_sequences_cost_little_more_than_one() -> None:
    target = ("--target-ms", "1:25,2:26,4:29,8:38", "--accept", "0.8")
    rows, best = predict(*target, "--draft-ms", "1:8,9:9.6")
    assert list(rows) == ["plain", "sequential", "concurrent", "prepared", "limit"]
    assert rows["prepared"].rate > 1.1 * rows["concurrent"].rate
    assert re.fullmatch(r"prepare [48] outcomes", rows["prepared"].words)
    assert best.startswith("best: --schedule async")
    dear, _ = predict(*target, "--draft-ms", "1:8,2:16,9:72")
    assert dear["prepared"] == (dear["concurrent"].rate, dear["concurrent"].factor, "prepare no outcomes")
    assert list(predict(*target, "--draft-ms", "8")[0]) == ["plain", "sequential", "concurrent", "limit"]


def test_a_machine_file_has_all_times(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    pair = {"target_ms": {"1": 25, "2": 26, "4": 29, "8": 38}, "draft_ms": {"1": 8, "9": 9.6}, "apart": True}
    path.write_text(json.dumps({"name": "a card", "pairs": {"a": pair | {"assumed": ["draft_ms"]}, "b": pair}}))
    run = duo("plan", "--machine", f"{path}:a", "--accept", "0.8")
    assert run.stderr.startswith("assumed, not measured: draft_ms\n")
    assert (
        run.text == duo("plan", "--target-ms", "1:25,2:26,4:29,8:38", "--draft-ms", "1:8,9:9.6", "--accept", "0.8").text
    )
    assert_refused(duo("plan", "--machine", path, "--accept", "0.8"), "the name of a pair", status=2)


# The statistics of a run


def test_branches_of_a_run(tmp_path: Path) -> None:
    figures = {"draft_ms_by_sequences": [3.0 + 0.01 * n for n in range(9)], "ranks": [0.9, 0.05, 0.01]}
    rows = predict("--json", statistics(tmp_path, **figures))[0]
    few = predict("--json", statistics(tmp_path, **{**figures, "ranks": [0.1, 0.05, 0.01]}))[0]
    assert rows["prepared"].rate > few["prepared"].rate >= rows["concurrent"].rate


def test_the_statistics_of_a_real_run(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    settings = ["--ignore-eos", "--schedule", "sync", "--lookup", "off", "--draft", "3"]
    options: tuple[Argument, ...] = ("-p", "the cat", *settings, *ONE_EACH, "--json", path)
    assert duo("-m", tiny, "-md", tiny, *options, "-n", "60").status == 0
    curve = json.loads(path.read_text())["policy"]["curve_ms"]["alone"]
    assert predict("--json", path)[0]["plain"].rate == pytest.approx(1000 / curve[0], rel=0.01)
    duo("-m", tiny, "-md", tiny, *options, "-n", "1")
    assert_refused(duo("plan", "--json", path), "a run with a draft that was long enough", status=2)
    duo("-m", tiny, *options[:-2], "-n", "40", "--lookup", "auto", "--json", path)
    assert_refused(duo("plan", "--json", path), "not the statistics of a run with a draft", status=2)


def test_damaged_statistics(tmp_path: Path) -> None:
    """tests/fuzz has many more."""
    damages: list[dict[str, Any]] = [
        {"draft_ms": {"alone": 2.0, "concurrent": 0}}, {"draft_ms": {"alone": 2.0}}, {"acceptance": 1.5},
        {"curve_ms": {"alone": [], "concurrent": []}}, {"curve_ms": {"alone": [-1.0], "concurrent": [1.0]}},
        {"curve_ms": None}, {"pair_ms": 0.0}, {"measured": {"alone": ["x"], "concurrent": []}}, {"ranks": ["x"]},
        {"draft_ms_by_sequences": [0.0]},
    ]  # fmt: skip
    for figures in damages:
        with pytest.raises(UsageError):
            plan(PlanOptions(stats=statistics(tmp_path, **figures)))
    path = tmp_path / "run.json"
    for content in (b"{", b"{}", b'{"policy": 7}', b"\xff\xfe\0"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not the statistics of a run"):
            plan(PlanOptions(stats=path))


# Usage errors


@pytest.mark.parametrize("option", ["--table", "--json"])
def test_files_that_cannot_be_read(tmp_path: Path, option: str) -> None:
    for path, said in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        assert_refused(duo("plan", option, path, *REST), f"{option} {path}: {said}", status=2)


def test_invalid_tables_and_times(tmp_path: Path) -> None:
    path = tmp_path / "times"
    for content in (b"", b"1\n", b"1 x\n", b"2 490\n", b"1 0\n", b"0 5\n1 4\n", b"\xff\xfe\0 1\n"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"--table {path} must have"):
            plan(PlanOptions(table=path, draft_ms="25", accept=0.8))
    for text in ("x", "-1", "nan", "2:490", "1:490,2:x", "1:490,0:3", ",", "490,500", "1e308", f"1{'0' * 400}:5"):
        with pytest.raises(UsageError, match="--target-ms must have the form 490 or 1:490,2:495,8:650"):
            plan(PlanOptions(target_ms=text, draft_ms="25", accept=0.8))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "missing values: add --target-ms or --table, and --draft-ms"),
        ("--target-ms 490 --draft-ms 25", "missing values: add --accept"),
        ("--target-ms 490 --table x --draft-ms 25 --accept 0.5", "--target-ms and --table both give"),
        ("--target-ms 490 --draft-ms 25 --accept 1.1", "--accept must be at most 1, not 1.1"),
        ("--target-ms 490 --draft-ms 2:25 --accept 0.5", "--draft-ms must have the form"),
        ("--machine x --draft-pair-ms 25 --accept 0.5", "--machine has all times: remove "),
        ("--machine nowhere.json --accept 0.5", "nowhere.json: No such file or directory"),
        ("--target-ms 490 --draft-ms 25 --accept 0.5 --draft 17", "--draft must be at most 16, not 17"),
    ],
)
def test_usage_errors(arguments: str, said: str) -> None:
    assert_refused(duo("plan", *arguments.split()), said, status=2)

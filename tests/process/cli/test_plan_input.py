"""What `duo plan` reads: the statistics of a run, and what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duo.cli.commands.plan import PlanOptions, plan, read_table
from duo.errors import UsageError
from tests.command import ONE_EACH, assert_refused, duo
from tests.unit.cli.table import Row, table

REST = ("--draft-ms", "25", "--accept", "0.8")

# All that is read of a run's statistics.
POLICY: dict[str, Any] = {
    "curve_ms": {"alone": [10.0, 11.0, 12.0], "beside": [12.0, 12.0, 12.0]},
    "draft_ms": {"alone": 2.0, "beside": 3.0},
    "acceptance": 0.5,
}


def predict(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[dict[str, Row], str]:
    assert plan(PlanOptions(**options)) == 0
    return table(capsys.readouterr().out)


def statistics(tmp_path: Path, **figures: Any) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"policy": POLICY | figures}))
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted here need not be exact."""
    monkeypatch.setattr("duo.cli.commands.plan._N_TOKENS", 1000)


# The statistics of a run


def test_a_run_with_a_draft_tells_all(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    options = ("-n", "60", "--ignore-eos", "--schedule", "sync", "--draft", "3", *ONE_EACH, "--json", path)
    assert duo("-m", tiny, "-md", tiny, "-p", "the cat", *options).status == 0
    run = duo("plan", "--json", path)
    assert (run.status, run.stderr.count("\n")) == (0, 1)
    curve = json.loads(path.read_text())["policy"]["curve_ms"]["alone"]
    assert table(run.text)[0]["plain"].rate == pytest.approx(1000 / curve[0], rel=0.01)


def test_each_condition_has_its_own_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = predict(capsys, stats=statistics(tmp_path))
    assert rows["plain"].rate == 100.0
    dear: dict[str, Any] = {"alone": 2.0, "beside": 300.0}
    assert predict(capsys, stats=statistics(tmp_path, draft_ms=dear))[0]["taking turns"] == rows["taking turns"]
    assert predict(capsys, stats=statistics(tmp_path, draft_ms=dear))[0]["overlapped"].rate < rows["overlapped"].rate
    dear = {"alone": POLICY["curve_ms"]["alone"], "beside": [90.0] * 3}
    assert predict(capsys, stats=statistics(tmp_path, curve_ms=dear))[0]["taking turns"] == rows["taking turns"]
    assert predict(capsys, stats=statistics(tmp_path, curve_ms=dear))[0]["overlapped"].rate < rows["overlapped"].rate


def test_options_win_over_the_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"target_ms": "490", "draft_ms": 25.0, "accept": 0.8}
    expected = predict(capsys, **given)
    assert predict(capsys, stats=statistics(tmp_path), **given) == expected
    for name, figures in (
        ("target_ms", {"draft_ms": {"alone": 25.0, "beside": 25.0}, "acceptance": 0.8}),
        ("draft_ms", {"curve_ms": {"alone": [490.0] * 3, "beside": [490.0] * 3}, "acceptance": 0.8}),
    ):
        assert predict(capsys, stats=statistics(tmp_path, **figures), **{name: given[name]}) == expected


def test_a_run_that_has_learned_too_little(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    duo("-m", tiny, "-md", tiny, "-p", "the cat", "-n", "1", *ONE_EACH, "--json", path)
    assert_refused(duo("plan", "--json", path), "has learned too little", status=2)


def test_a_run_without_a_draft(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    duo("-m", tiny, "-p", "the cat", "-n", "4", "-t", "1", "--json", path)
    assert_refused(duo("plan", "--json", path), "not the statistics of a run with a draft", status=2)


@pytest.mark.parametrize(
    "figures",
    [
        {"draft_ms": {"alone": 2.0, "beside": 0}},
        {"draft_ms": {"alone": "x", "beside": 1.0}},
        {"draft_ms": {"alone": 2.0, "beside": -1.0}},
        {"draft_ms": {"alone": 2.0}},
        {"draft_ms": [2.0, 2.0]},
        {"draft_ms": {"alone": [2.0], "beside": [2.0]}},
        {"acceptance": "x"},
        {"acceptance": None},
        {"acceptance": 1.5},
        {"curve_ms": {"alone": [], "beside": []}},
        {"curve_ms": {"alone": [-1.0], "beside": [1.0]}},
        {"curve_ms": {"alone": 7, "beside": 7}},
        {"curve_ms": {"alone": ["x"], "beside": [1.0]}},
        {"curve_ms": None},
    ],
)
def test_statistics_that_are_damaged(tmp_path: Path, figures: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        plan(PlanOptions(stats=statistics(tmp_path, **figures)))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"{}", b'{"policy": 7}', b"\xff\xfe\0"])
def test_other_files_than_statistics(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not the statistics of a run"):
        plan(PlanOptions(stats=path))


# What cannot be meant


@pytest.mark.parametrize("option", ["--table", "--json"])
def test_files_that_are_not_there(tmp_path: Path, option: str) -> None:
    for path, said in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        assert_refused(duo("plan", option, path, *REST), f"{option} {path}: {said}", status=2)


@pytest.mark.parametrize(
    "content", [b"", b"1\n", b"1 x\n", b"2 490\n", b"1 0\n", b"1 -4\n", b"1 nan\n", b"0 5\n1 4\n", b"\xff\xfe\0 1\n"]
)
def test_tables_that_are_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "times"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"--table {path}: "):
        read_table(path)


@pytest.mark.parametrize(
    "times", ["x", "0", "-1", "nan", "inf", "2:490", "1:490,2:x", "1:490,0:3", "1:490,-2:3", "1:2:3", ",", "490,500"]
)
def test_times_that_are_none(times: str) -> None:
    with pytest.raises(UsageError, match=f"--target-ms takes 490 or 1:490,2:495,8:650, not '{times}'"):
        plan(PlanOptions(target_ms=times, draft_ms=25.0, accept=0.8))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "needs --target-ms or --table, --draft-ms and --accept"),
        ("--target-ms 490 --draft-ms 25", "needs --target-ms or --table, --draft-ms and --accept"),
        ("--draft-ms 25 --accept 0.5", "needs --target-ms or --table, --draft-ms and --accept"),
        ("--target-ms 490 --table x --draft-ms 25 --accept 0.5", "--target-ms and --table both give"),
        ("--target-ms x --draft-ms 25 --accept 0.5", "--target-ms takes 490 or"),
        ("--target-ms 490 --draft-ms 25 --accept 1.1", "--accept is a share from 0 to 1"),
        ("--target-ms 490 --draft-ms 25 --accept nan", "--accept is a share from 0 to 1"),
        ("--target-ms 490 --draft-ms 25 --accept x", "'--accept'"),
        ("--target-ms 490 --draft-ms 0 --accept 0.5", "--draft-ms a time above 0"),
        ("--target-ms 490 --draft-ms inf --accept 0.5", "--draft-ms a time above 0"),
        ("--target-ms 490 --draft-ms x --accept 0.5", "'--draft-ms'"),
        ("--target-ms 490 --draft-ms 25 --accept 0.5 --draft 0", "'--draft'"),
        ("--target-ms 490 --draft-ms 25 --accept 0.5 --draft 17", "'--draft'"),
        ("--nonsense", "No such option: --nonsense"),
        ("nonsense", "nonsense"),
    ],
)
def test_options_that_cannot_be_meant(arguments: str, said: str) -> None:
    assert_refused(duo("plan", *arguments.split()), said, status=2)


def test_options_before_the_command_are_not_lost() -> None:
    said = "options of `duo plan` stand after `plan`"
    assert_refused(duo("--draft", "4", "plan", "--target-ms", "490", *REST), said, status=2)

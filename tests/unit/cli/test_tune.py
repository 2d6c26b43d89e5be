"""`duo tune`: what it prints, and what it keeps for later runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from duo.diagnose.measure import MeasurementError, Meter
from duo.diagnose.timing import Measurements
from tests.command import Run, models
from tests.unit.cli.runner import duo

pytestmark = pytest.mark.usefixtures("instant")


def notes(run: Run) -> list[str]:
    """The lines on stderr, without what is said about drafts that are no smaller than the target."""
    return [line for line in run.stderr.splitlines() if not line.startswith("duo: the draft is ")]


def test_it_advises_and_keeps_what_later_runs_begin_with(tiny: Path, tmp_path: Path) -> None:
    env, report = {"DUO_CONFIG": str(tmp_path / "config")}, tmp_path / "run.json"
    run = duo("tune", *models(tiny, tiny), env=env)
    assert run.status == 0
    (line,) = notes(run)
    assert re.fullmatch(r"duo: measuring takes about \d+ s, at most \d+ s", line)
    measured, predictions, advice = run.text.split("\n\n")
    for words in ("measured, ms per decode", "target, threads: 1 ", "draft, threads: 1 ", "100 % of the draft's"):
        assert words in measured
    plain, *_, best = predictions.splitlines()
    assert plain == "plain           10.00 tokens/s   1.00×   the target alone"
    said, flags, where = advice.splitlines()
    assert said.startswith("This draft pays: about ")
    assert flags.startswith(f"Options: {best.split('; ')[0].removeprefix('best: ')} (with 1 and 1 threads")
    (profile,) = (tmp_path / "config").rglob("tiny+tiny*.json")
    assert f" {profile}, " in where
    assert set(json.loads(profile.read_text())) == {"for", "policy", "threads"}

    found = duo(*models(tiny, tiny), "-p", "the cat", "-n", "1", "--json", report, env=env)
    assert (found.status, found.warnings) == (0, [])
    policy = json.loads(report.read_text())["policy"]
    assert policy["draft_ms"]["alone"] == pytest.approx(5), "nothing else is known of this pair"
    assert policy["curve_ms"]["alone"] == pytest.approx([100] * 17)


def test_models_that_cannot_roll_back(tiny: Path, recurrent: Path, tmp_path: Path) -> None:
    for target, draft in ((tiny, recurrent), (recurrent, tiny)):
        run = duo("tune", *models(target, draft), env={"DUO_CONFIG": str(tmp_path / "config")})
        assert (run.status, run.stdout) == (0, b"")
        (line,) = notes(run)
        assert "a draft cannot be used" in line
    assert not (tmp_path / "config").exists()


def test_without_reliable_times_nothing_is_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Measurements:
        raise MeasurementError("the machine cannot be measured now")

    monkeypatch.setattr(Meter, "measure", refuse)
    run = duo("tune", *models(tiny, tiny), env={"DUO_CONFIG": str(tmp_path / "config")})
    assert (run.status, run.stdout, (tmp_path / "config").exists()) == (1, b"", False)
    assert notes(run)[-1].startswith("duo: error: the machine cannot be measured now; nothing was saved (")


def test_doubtful_times_are_tentative_and_not_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Meter.measure

    def doubtful(*arguments: Any) -> Measurements:
        found = measure(*arguments)
        found.doubts = "other programs use 1.2 of 2 cores"
        return found

    monkeypatch.setattr(Meter, "measure", doubtful)
    run = duo("tune", *models(tiny, tiny), env={"DUO_CONFIG": str(tmp_path / "config")})
    assert run.status == 0
    first, *_, last = run.text.splitlines()
    assert first == "tentative: other programs use 1.2 of 2 cores"
    assert last == "Nothing was saved: try again when the machine is idle."
    assert "This draft pays: about " in run.text
    assert "(with 1 and 1 threads)" in run.text
    assert "sequences at once" not in run.text, "not measured on a busy machine"
    assert not (tmp_path / "config").exists()

"""How the two models share the machine: as asked for, without a change of the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import ONE_EACH, Argument, duo
from tests.process.cli.reference import greedy_text

PROMPT = "def fibonacci(n):\n"
SCHEDULES = ("async", "sync", "off")


def _statistics(path: Path, *arguments: Argument, before: str = "") -> tuple[bytes, dict[str, Any]]:
    """The text of a run of 32 tokens, and its statistics."""
    run = duo("-p", PROMPT, "-n", "32", "--exact", *ONE_EACH, *arguments, "--json", path, before=before)
    assert (run.status, run.n_tokens, run.warnings) == (0, 32, [])
    return run.stdout, json.loads(path.read_text())


@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
def test_the_text_is_the_same_in_every_schedule(demo_pair: tuple[Path, Path], tmp_path: Path, schedule: str) -> None:
    target, draft = demo_pair
    text, report = _statistics(tmp_path / "run.json", "-m", target, "-md", draft, "--schedule", schedule)
    assert text == greedy_text(target, PROMPT, 32)
    tokens = report["generation"]["tokens_by_schedule"]
    assert sum(tokens.values()) == 31, "all but the first"
    if schedule != "auto":
        assert set(tokens) == {schedule}
        assert report["policy"]["schedule"] == schedule
        assert report["policy"]["changes"] == []
    if schedule == "off":
        assert report["generation"]["decodes"] == 31


def test_in_turns_guesses_are_used_and_nothing_is_hidden(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    _, report = _statistics(tmp_path / "run.json", "-m", target, "-md", draft, "--schedule", "sync", "--draft", "4")
    assert report["draft"]["hidden"] == 0.0
    assert report["draft"]["drafted"] >= report["draft"]["accepted"]
    assert report["generation"]["waited_s"] == 0.0


def test_with_no_flag_it_begins_with_turns(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    duo("-m", tiny, "-md", tiny, "-p", "the cat", "-n", "1", *ONE_EACH, "--json", path)
    assert json.loads(path.read_text())["policy"]["schedule"] == "sync"


@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
def test_a_schedule_without_a_draft_is_a_plain_run(tiny: Path, schedule: str) -> None:
    arguments = ("-m", tiny, "-p", "the cat", "-n", "40", "--ignore-eos", "-t", "1")
    run = duo(*arguments, "--schedule", schedule)
    assert (run.status, run.n_tokens, run.warnings) == (0, 40, [])
    assert run.stdout == duo(*arguments).stdout


# Code for `before`: another schedule for every step.
RESTLESS = """
import random
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
learn, dice = Policy.learn_step, random.Random(3)
def change(self, *arguments):
    learn(self, *arguments)
    self.chooser.now = dice.choice(list(Schedule))
Policy.learn_step = change
"""


def test_a_change_at_every_step_changes_no_text(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    text, report = _statistics(tmp_path / "run.json", "-m", target, "-md", draft, before=RESTLESS)
    assert text == greedy_text(target, PROMPT, 32)
    assert len(report["generation"]["tokens_by_schedule"]) > 1


def test_the_policy_is_in_the_statistics(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    _, report = _statistics(tmp_path / "run.json", "-m", target, "-md", draft)
    policy = report["policy"]
    for change in policy["changes"]:
        assert set(change) == {"tokens", "schedule", "reason"}
        assert change["schedule"] in SCHEDULES
        assert 0 < change["tokens"] <= 32
        assert change["reason"]
    assert set(policy["forecast_tokens_per_s"]) == set(SCHEDULES)
    assert all(rate > 0 for rate in policy["forecast_tokens_per_s"].values())
    assert 0 < policy["acceptance"] < 1
    assert policy["rate"] > 0
    assert policy["predicted_tokens_per_s"] > 0
    for name in ("alone", "beside"):
        assert policy["draft_ms"][name] > 0
        assert len(policy["curve_ms"][name]) == 17
    # What was measured is the mean over the decodes of that size.
    assert set(policy["target_ms"]) == {"alone", "beside"}
    sizes = {int(n) for times in policy["target_ms"].values() for n in times}
    assert sizes == {k + 1 for k, n in enumerate(report["draft"]["decodes_by_candidates"]) if n}


def test_unknown_schedules_are_refused() -> None:
    run = duo("-m", "missing.gguf", "-p", "x", "--schedule", "fast")
    assert (run.status, run.stderr.count("\n")) == (2, 1)
    assert "'fast' is not one of 'auto', 'async', 'sync', 'off'" in run.stderr

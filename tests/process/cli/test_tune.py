"""`duo tune`: a real measurement, and Ctrl-C on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import Argument, models
from tests.gguf_files import tiny_llama
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.unit.cli import runner

# Code for `before`: a slow target, and no other program computes.
SLOW = """
from tests.child import slow_target
from duo.diagnose import target_meter
slow_target(0.01)
target_meter.other_cpu_use = lambda _: 0.0
"""


def test_a_real_measurement_is_what_the_next_run_begins_with(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_cores: Callable[[int], None]
) -> None:
    set_cores(1)  # fewer measurements
    for user in ("duo.diagnose.target_meter", "duo.engine.profile"):
        monkeypatch.setattr(f"{user}.other_cpu_use", lambda _: 0.0)  # that other programs compute is not tested here
    env, report = {"DUO_CONFIG": str(tmp_path / "config")}, tmp_path / "run.json"
    run = runner.duo("tune", *models(tiny, tiny), env=env)
    if "try again when" in run.stderr + run.text:
        pytest.skip("other programs compute")
    assert run.status == 0, run.stderr
    assert "duo: measuring takes about " in run.stderr
    assert "--schedule " in run.text
    (profile,) = (tmp_path / "config").rglob("tiny+tiny*.json")
    state = json.loads(profile.read_text())["policy"]["costs"]["0"][0]["target_s"]
    measured_ms = [1000 * seconds for seconds, _ in state.values()]
    found = runner.duo(*models(tiny, tiny), "-p", "the cat", "-n", "1", "--json", report, env=env)
    assert (found.status, found.warnings) == (0, [])
    curve = json.loads(report.read_text())["policy"]["curve_ms"]["alone"]
    assert 0.99 * min(measured_ms) <= curve[0] <= 1.01 * max(measured_ms)
    assert len(set(curve)) > 3, "many sizes were measured, none is known from this run"


def test_ctrl_c_keeps_nothing(tiny: Path, tmp_path: Path) -> None:
    env = {"DUO_CONFIG": str(tmp_path / "config")}
    with Terminal("tune", *models(tiny, tiny), stderr_too=True, env=env, size=(100, 24)) as terminal:
        terminal.read_until(b"at once")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"duo: interrupted" in terminal.shown.rpartition(b"\x1b[2K")[2], "the progress bar is removed"
    assert not (tmp_path / "config").exists()


def test_ctrl_c_leaves_a_table_of_the_drafts_that_were_measured(tiny: Path, tmp_path: Path) -> None:
    target, report = tmp_path / "target.gguf", tmp_path / "figures.json"
    target.write_bytes(tiny.read_bytes() + bytes(4 * tiny.stat().st_size))
    drafts = [tiny_llama(tmp_path / name) for name in ("first.gguf", "second.gguf")]
    env = {"DUO_CACHE": str(tmp_path / "cache"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    arguments: list[Argument] = ["tune", "-m", target, *drafts, "-t", "1", "-n", "8", "--json", report]
    with Terminal(*arguments, before=SLOW, stderr_too=True, env=env, size=(120, 24)) as terminal:
        terminal.read_until(b"draft 2 of 2: both")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"duo: interrupted: the table has what was measured" in terminal.shown
    names = {row["name"] for row in json.loads(report.read_text())["ranking"]}
    assert names == {"first.gguf", "lookup", "none"}

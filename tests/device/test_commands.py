"""Commands on the device, each in a process of its own: check, bench, tune, and two runs at the same time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import ONE_EACH, SLOW_TARGET, duo, models
from tests.serving import Served

# Flash attention ends the process in Mesa 22.3, so there is no --exact. The tiny models have no near-ties.
PROMPT = ("-p", "the cat sat on the mat and", "-n", "24", "-fa", "off", *ONE_EACH)
TEXT = (*PROMPT, "--ignore-eos", "--lookup", "off")
DRAFT_ON_DEVICE = ("-ngl", "0", "-ngld", "99")

# Code for `before`: whatever other programs compute, it is measured; decodes take long enough for that.
MEASURABLE = """
from tests.child import slow_target
slow_target(0.005)
from duo.diagnose import measure
from duo.engine import profile
measure.other_cpu_use = profile.other_cpu_use = lambda _: 0.0
"""


@pytest.mark.parametrize("where", [DRAFT_ON_DEVICE, ("-ngl", "99", "-ngld", "0"), ("-ngl", "99", "-ngld", "99")])
def test_check_finds_the_same_text_with_and_without_the_draft(
    gpu: str, pair: tuple[Path, Path], where: tuple[str, ...]
) -> None:
    run = duo("check", *models(*pair), "-dev", gpu, "-devd", gpu, *where, *PROMPT, "-v")
    assert run.status == 0, run.stderr
    assert "identical" in run.text
    assert run.stderr.count(f"{gpu} model buffer size") == where.count("99"), "so many models are on the device"


def test_bench_says_which_devices_the_contestants_used(gpu: str, pair: tuple[Path, Path]) -> None:
    options = ("--modes", "async,plain", "--categories", "chat", "-n", "16", "-r", "1", "--peers", "none", "-fa", "off")
    run = duo("bench", *models(*pair), *DRAFT_ON_DEVICE, *options, *ONE_EACH, "-o", "json")
    assert run.status == 0, run.stderr
    rows = {row["mode"]: row for row in json.loads(run.text)["rows"]}
    assert {mode: row["devices"] for mode, row in rows.items()} == {"async": f"CPU+{gpu}", "plain": "CPU"}
    assert rows["async"]["same_text"] is True


def test_tune_measures_the_device_and_the_next_run_begins_with_that(
    gpu: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    env, report = {"DUO_CONFIG": str(tmp_path / "config")}, tmp_path / "run.json"
    tuned = duo("tune", *models(*pair), *DRAFT_ON_DEVICE, "-fa", "off", "-v", before=MEASURABLE, env=env)
    assert tuned.status == 0, tuned.stderr
    assert f"{gpu} model buffer size" in tuned.stderr
    (profile,) = (path for path in (tmp_path / "config").rglob("*") if path.is_file())
    measured = json.loads(profile.read_text())["policy"]
    assert measured["alone"]["draft_s"], "the draft was measured on the device"
    run = duo(*models(*pair), *DRAFT_ON_DEVICE, *TEXT, "--json", report, before=MEASURABLE, env=env)
    assert run.status == 0, run.stderr
    document = json.loads(report.read_text())
    assert gpu in [device["name"] for device in document["devices"]]
    curve = document["policy"]["curve_ms"]["alone"]
    assert len(set(curve)) > 3, "many sizes were measured, and this run verified few"


def test_two_runs_at_the_same_time_write_what_one_writes(gpu: str, pair: tuple[Path, Path]) -> None:
    options = (*models(*pair), "-dev", gpu, "-ngl", "99", "-ngld", "0", *TEXT)
    with Served(*options, before=SLOW_TARGET) as first, Served(*options, before=SLOW_TARGET) as second:
        assert (first.finish(), second.finish()) == (0, 0), first.lines + second.lines
    alone = duo("-m", pair[0], "-dev", gpu, "-ngl", "99", *TEXT)
    assert alone.status == 0, alone.stderr
    assert (first.stdout, second.stdout) == (alone.stdout, alone.stdout)

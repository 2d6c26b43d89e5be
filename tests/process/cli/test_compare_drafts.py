"""`duo tune` without -md: a real measurement of the demo pair, and Ctrl-C on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import duo
from tests.gguf_files import tiny_llama
from tests.process.cli.terminal import CTRL_C, Terminal

SLOW = (
    "from tests.child import slow_target; slow_target(0.01)\n"
    "from duo.diagnose import target_meter; target_meter.other_cpu_use = lambda _: 0.0\n"  # no other program computes
)


def test_the_draft_of_the_demo_pair_is_found_and_measured(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    report, env = tmp_path / "figures.json", {"DUO_CACHE": str(draft.parents[1]), "HF_HUB_CACHE": str(tmp_path)}
    run = duo("tune", "-m", target, "-n", "32", "--json", report, env=env)
    if "try again when" in run.stderr:
        pytest.skip("other programs compute")
    assert (run.status, run.stderr.count("duo: ")) in ((0, 1), (0, 2)), "the duration, and that it has waited"
    assert max(map(len, run.text.split("\n\n")[0].splitlines())) <= 100
    assert f"duo -m {target}" in run.text.splitlines()[-1]
    figures = json.loads(report.read_text())
    rows = {row["name"]: row for row in figures["ranking"]}
    assert rows.keys() == {draft.name, "lookup", "none"}
    found = rows[draft.name]
    assert found["vocabulary"] == "shared"
    assert 0.4 < found["acceptance"] < 1.0, "of two quantisations of one model"
    assert 0 < found["draft_ms"] < max(figures["target_ms"])
    assert rows["none"]["tokens_per_s"] == pytest.approx(1000 / figures["target_ms"][0])
    assert [len(text) for text in figures["texts"]] == [2, 2]


def test_ctrl_c_leaves_a_table_of_what_was_measured(tiny: Path, tmp_path: Path) -> None:
    target, report = tmp_path / "target.gguf", tmp_path / "figures.json"
    target.write_bytes(tiny.read_bytes() + bytes(4 * tiny.stat().st_size))
    first, second = (tiny_llama(tmp_path / name) for name in ("first.gguf", "second.gguf"))
    env = {"DUO_CACHE": str(tmp_path / "cache"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    arguments = ("tune", "-m", target, first, second, "-t", "1", "-n", "8", "--json", report)
    with Terminal(*arguments, before=SLOW, stderr_too=True, env=env, size=(120, 24)) as terminal:
        terminal.read_until(b"draft 2 of 2: both")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"duo: interrupted: the table has what was measured" in terminal.shown
    names = {row["name"] for row in json.loads(report.read_text())["ranking"]}
    assert names == {"first.gguf", "lookup", "none"}

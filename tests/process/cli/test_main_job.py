"""The main job: the demo pair in a process of its own, with all that a run can write."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import ONE_EACH, SLOW_TARGET, models
from tests.serving import Served
from tests.unit.cli.reference import greedy_text

PROMPT = "Emoji: 🍎🍊🍋🍌🍉🍇🍓🍎🍊🍋🍌🍉🍇🍓🍎🍊"
N = 32
OPTIONS = f"-n {N} --exact --draft 4 --schedule async --lookup off -Cr 0-0 -v".split()


def test_text_and_statistics(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with Served(*models(*demo_pair), "-p", PROMPT, *OPTIONS, *ONE_EACH, "--json", file, before=SLOW_TARGET) as run:
        assert run.finish() == 0, run.lines
    assert run.stdout == greedy_text(demo_pair[0], PROMPT, N)
    assert any(byte > 127 for byte in run.stdout)
    for data in run.writes[:-1]:  # whole characters; with the last, the text may end in the middle of one
        data.decode()

    report, said = json.loads(file.read_text()), "\n".join(run.lines)
    target, draft = report["models"]["target"], report["models"]["draft"]
    assert (target["path"], draft["path"]) == tuple(map(str, demo_pair))
    assert (target["quantisation"], draft["quantisation"], target["layers"]) == ("F16", "Q4_0", 30)
    assert report["threads"]["cores"] == [0]
    assert report["memory"]["peak_bytes"] > target["bytes"] + draft["bytes"]
    generation, draft, policy = (report[name] for name in ("generation", "draft", "policy"))
    assert generation["tokens_by_schedule"] == {"async": N - 1}
    assert draft["accepted"] + generation["decodes"] + 1 == N
    assert draft["drafted"] >= draft["verified"] >= draft["accepted"] > 0
    assert 0 <= draft["hidden"] <= 1
    assert f"{generation['decodes']} decodes, {generation['target_ms_per_decode']:.2f} ms each" in said
    assert f"{draft['drafted']} drafted, {draft['verified']} verified, {draft['accepted']} accepted" in said
    assert f"{100 * policy['acceptance']:.1f} % accepted, λ = {policy['rate']:.1f} tokens/s" in said
    assert run.lines[-1] == f"tokens: {N} tps: {generation['tokens_per_s']:.3f}"

"""The main job: the demo pair in a process of its own, with all that a run can write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.command import ONE_EACH, SLOW_TARGET, models
from tests.serving import Served
from tests.unit.cli.reference import greedy_text

PROMPT = "Emoji: 🍎🍊🍋🍌🍉🍇🍓🍎🍊🍋🍌🍉🍇🍓🍎🍊"
N = 32


class Job(NamedTuple):
    """What a run has written; stdout as it was read, in pieces."""

    writes: list[bytes]
    stderr: str
    report: Any
    trace: Path


@pytest.fixture(scope="module")
def job(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    report, trace = folder / "run.json", folder / "run.trace"
    options = (
        "-n",
        str(N),
        "--exact",
        "--draft",
        "4",
        "--schedule",
        "async",
        "--lookup",
        "off",
        "-Cr",
        "0-0",
        "-v",
        *ONE_EACH,
    )
    arguments = (*models(*demo_pair), "-p", PROMPT, *options, "--json", report, "--trace", trace)
    with Served(*arguments, before=SLOW_TARGET) as run:
        assert run.finish() == 0, run.lines
        return Job(run.writes, "\n".join(run.lines), json.loads(report.read_text()), trace)


def test_the_text_is_the_targets_own_in_whole_characters(job: Job, demo_pair: tuple[Path, Path]) -> None:
    assert b"".join(job.writes) == greedy_text(demo_pair[0], PROMPT, N)
    for data in job.writes[:-1]:  # with the last, the text may end in the middle of one
        data.decode()
    assert any(byte > 127 for byte in b"".join(job.writes))


def test_the_statistics(job: Job, demo_pair: tuple[Path, Path]) -> None:
    target, draft = job.report["models"]["target"], job.report["models"]["draft"]
    assert (target["path"], draft["path"]) == tuple(map(str, demo_pair))
    assert (target["quantisation"], draft["quantisation"], target["layers"]) == ("F16", "Q4_0", 30)
    threads = job.report["threads"]
    assert (threads["cores"], threads["apart"]) == ([0], False)
    generation, draft, policy = (job.report[name] for name in ("generation", "draft", "policy"))
    assert generation["tokens_by_schedule"] == {"async": N - 1}
    assert draft["accepted"] + generation["decodes"] + 1 == N
    assert draft["drafted"] >= draft["verified"] >= draft["accepted"] > 0
    assert 0 <= draft["hidden"] <= 1
    assert job.report["memory"]["peak_bytes"] > sum(model["bytes"] for model in job.report["models"].values())
    assert f"{generation['decodes']} decodes, {generation['target_ms_per_decode']:.2f} ms each" in job.stderr
    assert f"{draft['drafted']} drafted, {draft['verified']} verified, {draft['accepted']} accepted" in job.stderr
    assert f"{100 * policy['acceptance']:.1f} % accepted, λ = {policy['rate']:.1f} tokens/s" in job.stderr
    assert job.stderr.splitlines()[-1] == f"tokens: {N} tps: {generation['tokens_per_s']:.3f}"

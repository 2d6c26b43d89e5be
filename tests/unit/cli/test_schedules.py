"""No schedule, cache type or architecture changes the text; statistics say what was used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duo.config.engine_config import CACHE_TYPES
from duo.engine.drafter import Drafter
from tests.command import ONE_EACH, Argument, Run, models
from tests.unit.cli.runner import duo

TEXT = ("-p", "the cat sat on the mat and", "-n", "32", "--ignore-eos", "--exact", "--lookup", "off", *ONE_EACH)


def plain(target: Path, *more: Argument) -> bytes:
    return duo("-m", target, *TEXT, *more).stdout


def drafted(path: Path, target: Path, draft: Path, *more: Argument) -> tuple[Run, dict[str, Any]]:
    """A run and its statistics."""
    run = duo(*models(target, draft), *TEXT, *more, "--json", path)
    assert run.status == 0, run.stderr
    return run, json.loads(path.read_text())


@pytest.mark.parametrize("schedule", ["auto", "async", "sync", "off"])
def test_the_statistics_name_the_schedule_and_the_text_is_the_same(
    kin: dict[str, Path], tmp_path: Path, schedule: str
) -> None:
    run, report = drafted(tmp_path / "run.json", kin["lfm2"], kin["llama"], "--schedule", schedule)
    assert (run.stdout, run.warnings) == (plain(kin["lfm2"], "--schedule", schedule), [])
    tokens = report["generation"]["tokens_by_schedule"]
    assert sum(tokens.values()) == 31, "all but the first"
    if schedule != "auto":
        found = set(tokens), report["policy"]["schedule"], report["policy"]["changes"]
        assert found == ({schedule}, schedule, [])


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_every_cache_type_decodes(tiny: Path, kind: str) -> None:
    run = duo(*models(tiny, tiny), "-p", "the cat", "-n", "4", "-ctk", kind, "-ctv", kind, "-fa", "on")
    assert (run.status, run.n_tokens, run.warnings) == (0, 4, [])


# Caches with limited rollback


@pytest.mark.usefixtures("slow_target")
@pytest.mark.parametrize("name", ["lfm2", "qwen35"])
def test_a_hybrid_target_verifies_as_many_candidates_as_it_can_roll_back(
    kin: dict[str, Path], tmp_path: Path, name: str
) -> None:
    run, report = drafted(tmp_path / "run.json", kin[name], kin["llama"], "--schedule", "async")
    statistics = report["draft"]
    assert 0 < statistics["accepted"] < statistics["verified"]
    assert 2 < len(statistics["decodes_by_candidates"]) <= 7, "up to six candidates"
    assert (run.stdout, run.warnings) == (plain(kin[name]), [])


def test_more_candidates_than_can_be_rolled_back(kin: dict[str, Path]) -> None:
    pair = models(kin["lfm2"], kin["llama"])
    run = duo(*pair, *TEXT, "--draft", "7", "-b", "512")
    assert run.warnings == ["duo: warning: --draft 7: lfm2.gguf can roll back 6 tokens, so no more are verified"]
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"]))
    assert duo(*pair, *TEXT, "--draft", "6").warnings == []
    assert duo("-m", kin["lfm2"], *TEXT, "--draft", "7").warnings == []


@pytest.mark.parametrize("options", [("-ub", "3"), ("-n", "8", "-c", "40", "--draft", "45")])
def test_batches_too_small_for_llama_cpp(kin: dict[str, Path], options: tuple[str, ...]) -> None:
    """It aborts the process where the tokens that may be rolled back do not fit a batch or the context."""
    run = duo(*models(kin["lfm2"], kin["llama"]), *TEXT, *options)
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"], *options))


def test_a_model_that_cannot_roll_back_is_neither_draft_nor_drafted_for(
    kin: dict[str, Path], tiny: Path, recurrent: Path
) -> None:
    # As a draft a hybrid would have to roll back what it has decoded token by token.
    text = ("-p", "the cat", "-n", "8", *ONE_EACH)
    for target, draft, culprit in ((recurrent, tiny, recurrent), (kin["qwen35"], kin["lfm2"], kin["lfm2"])):
        alone, run = duo("-m", target, *text), duo(*models(target, draft), *text)
        assert run.warnings == [f"duo: warning: {culprit.name} cannot roll back its cache: speculation is off"]
        assert (run.status, run.n_tokens, run.stdout) == (0, 8, alone.stdout)
        assert alone.warnings == []
        assert "drafted" not in run.stderr
    run = duo("-m", recurrent, *text, "--exact")
    assert run.warnings == ["duo: warning: recurrent.gguf cannot roll back its cache: its decodes are not exact"]
    assert run.stdout == duo("-m", recurrent, *text).stdout


@pytest.mark.usefixtures("slow_target")
def test_a_draft_that_fails(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """After one candidate; with -v the traceback is shown."""
    reconcile, left = Drafter._reconcile, iter([True])

    def fail(self: Drafter) -> None:
        if next(left, None) is None:
            raise ValueError("out of ink")
        reconcile(self)

    monkeypatch.setattr(Drafter, "_reconcile", fail)
    run = duo(*models(kin["llama"], kin["llama"]), *TEXT, "--schedule", "async")
    warning = "duo: warning: the draft failed (out of ink): the target continues alone"
    assert run.warnings == [warning]
    assert (run.status, run.n_tokens, run.stdout) == (0, 32, plain(kin["llama"]))
    assert "; failed: " in run.stderr
    assert "Traceback" not in run.stderr
    run = duo(*models(kin["llama"], kin["llama"]), *TEXT, "-v", "--schedule", "async")
    assert f"{warning}\nTraceback (most recent call last):\n" in run.stderr
    assert "\nValueError: out of ink\n" in run.stderr

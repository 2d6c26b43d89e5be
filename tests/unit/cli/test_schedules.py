"""No schedule, cache type or architecture changes the text; statistics say what was used."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from duo.cli.options.context import CacheType
from duo.engine.drafter import Drafter
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule
from tests.command import ONE_EACH, Argument, Run, models
from tests.gguf_files import tiny_hybrid
from tests.unit.cli.runner import duo

TEXT = ("-p", "the cat sat on the mat and", "-n", "32", "--ignore-eos", "--exact", "--lookup", "off", *ONE_EACH)
OFF = "cannot roll back its cache: speculation is off"


def plain(target: Path, *more: Argument) -> bytes:
    return duo("-m", target, *TEXT, *more).stdout


def drafted(path: Path, target: Path, draft: Path, *more: Argument) -> tuple[Run, dict[str, Any]]:
    """A run and its statistics."""
    run = duo(*models(target, draft), *TEXT, *more, "--json", path)
    assert run.status == 0, run.stderr
    return run, json.loads(path.read_text())


@pytest.mark.parametrize("schedule", ["auto", "async", "sync", "off"])
def test_the_text_is_the_same_in_every_schedule(kin: dict[str, Path], tmp_path: Path, schedule: str) -> None:
    for target in ("llama", "lfm2"):
        run, report = drafted(tmp_path / "run.json", kin[target], kin["llama"], "--schedule", schedule)
        assert (run.stdout, run.warnings) == (plain(kin[target], "--schedule", schedule), [])
        tokens = report["generation"]["tokens_by_schedule"]
        assert sum(tokens.values()) == 31, "all but the first"
        if schedule != "auto":
            assert (set(tokens), report["policy"]["schedule"]) == ({schedule}, schedule)
            assert report["policy"]["changes"] == []
        if schedule == "off":
            assert report["generation"]["decodes"] == 31


def test_a_change_of_schedule_at_every_step(
    kin: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, dice = Policy.learn_step, random.Random(3)

    def change(self: Policy, n_tokens: int, cost: StepCost) -> None:
        learn(self, n_tokens, cost)
        self.chooser.now = dice.choice(list(Schedule))

    monkeypatch.setattr(Policy, "learn_step", change)
    run, report = drafted(tmp_path / "run.json", kin["llama"], kin["llama"])
    assert run.stdout == plain(kin["llama"])
    assert len(report["generation"]["tokens_by_schedule"]) > 1


def test_auto_begins_with_the_target_alone(tiny: Path, tmp_path: Path) -> None:
    _, report = drafted(tmp_path / "run.json", tiny, tiny, "-n", "1")
    assert report["policy"]["schedule"] == "off"


@pytest.mark.parametrize("kind", get_args(CacheType))
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


@pytest.mark.usefixtures("slow_target")
def test_a_sliding_window_is_rolled_back(kin: dict[str, Path], tmp_path: Path) -> None:
    """After as long a prompt, a cache of the window alone would have lost its beginning."""
    prompt = ("-p", 12 * "the cat sat on the mat and ", "-ub", "32")
    run, report = drafted(tmp_path / "run.json", kin["gemma"], kin["llama"], *prompt, "--schedule", "async")
    assert 0 < report["draft"]["accepted"] < report["draft"]["verified"]
    assert (run.stdout, run.warnings) == (plain(kin["gemma"], *prompt), [])


def test_more_candidates_than_can_be_rolled_back(kin: dict[str, Path]) -> None:
    pair = models(kin["lfm2"], kin["llama"])
    run = duo(*pair, *TEXT, "--draft", "7", "-b", "512")
    assert run.warnings == ["duo: warning: --draft 7: lfm2.gguf can roll back 6 tokens, so no more are verified"]
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"]))
    assert duo(*pair, *TEXT, "--draft", "6").warnings == []
    assert duo("-m", kin["lfm2"], *TEXT, "--draft", "7").warnings == []


def test_fewer_rollbacks_granted_than_requested(
    kin: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_cpp.llama_n_rs_seq", lambda _: 2)
    options = ("--schedule", "sync", "--draft", "5")
    run, report = drafted(tmp_path / "run.json", kin["lfm2"], kin["llama"], *options)
    assert run.warnings == ["duo: warning: --draft 5: lfm2.gguf can roll back 2 tokens, so no more are verified"]
    assert len(report["draft"]["decodes_by_candidates"]) <= 3
    assert run.stdout == plain(kin["lfm2"])


@pytest.mark.parametrize(
    "options", [("-b", "1"), ("-ub", "3"), ("-n", "8", "-c", "40", "--draft", "45"), ("-n", "1", "-c", "60")]
)
def test_batches_too_small_for_llama_cpp(kin: dict[str, Path], options: tuple[str, ...]) -> None:
    """It aborts the process where the tokens that may be rolled back do not fit a batch or the context."""
    run = duo(*models(kin["lfm2"], kin["llama"]), *TEXT, *options)
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"], *options))


def test_as_many_layers_as_real_models_have(tiny: Path, tmp_path: Path) -> None:
    """llama.cpp aborts the process where the states of all layers are more than its graph holds."""
    deep = tiny_hybrid(tmp_path / "deep.gguf", n_layer=30)
    run = duo(*models(deep, tiny), "-p", "the cat", "-n", "20", *ONE_EACH, "--schedule", "sync")
    assert (run.status, run.n_tokens, run.warnings) == (0, 20, [])


def test_a_model_that_cannot_roll_back_is_neither_draft_nor_drafted_for(
    kin: dict[str, Path], tiny: Path, recurrent: Path
) -> None:
    lfm2 = kin["lfm2"]  # as a draft it would have to roll back its lead, which it decoded token by token
    for target, draft, culprit in (
        (recurrent, tiny, recurrent),
        (tiny, recurrent, recurrent),
        (kin["qwen35"], lfm2, lfm2),
    ):
        text = ("-p", "the cat", "-n", "8", *ONE_EACH)
        alone, run = duo("-m", target, *text), duo(*models(target, draft), *text)
        assert run.warnings == [f"duo: warning: {culprit.name} {OFF}"]
        assert (run.status, run.n_tokens, run.stdout) == (0, 8, alone.stdout)
        assert alone.warnings == []
        assert "drafted" not in run.stderr


def test_exact_on_a_model_that_cannot_roll_back(tiny: Path, recurrent: Path) -> None:
    warning = "duo: warning: recurrent.gguf cannot roll back its cache: its decodes are not exact"
    expected = duo("-m", recurrent, "-p", "the cat", "-n", "8", "-t", "1").stdout
    for pair in (models(recurrent), models(recurrent, tiny)):
        run = duo(*pair, "-p", "the cat", "-n", "8", *ONE_EACH, "--exact")
        assert (run.status, run.stdout, run.warnings[0]) == (0, expected, warning)


# A draft that fails


def dying(monkeypatch: pytest.MonkeyPatch, n_steps: int) -> None:
    """The draft offers `n_steps` candidates and fails."""
    reconcile, left = Drafter._reconcile, iter(range(n_steps))

    def fail(self: Drafter) -> None:
        if next(left, None) is None:
            raise ValueError("out of ink")
        reconcile(self)

    monkeypatch.setattr(Drafter, "_reconcile", fail)


def assert_the_target_continues(kin: dict[str, Path], *options: Argument) -> None:
    run = duo(*models(kin["llama"], kin["llama"]), *TEXT, *options)
    assert run.warnings == ["duo: warning: the draft failed (out of ink): the target continues alone"]
    assert (run.status, run.n_tokens, run.stdout) == (0, 32, plain(kin["llama"]))
    assert "; failed: " in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.usefixtures("slow_target")
def test_an_async_draft_that_fails(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, n_steps=1)
    assert_the_target_continues(kin, "--schedule", "async")


def test_a_sync_draft_that_fails(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, n_steps=0)  # a draft as slow as the target is asked only until its time is known
    assert_the_target_continues(kin, "--schedule", "sync", "--no-warmup")


@pytest.mark.usefixtures("slow_target")
def test_with_v_the_traceback_of_a_failed_draft_is_shown(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, n_steps=1)
    run = duo(*models(tiny, tiny), *TEXT, "-v", "--schedule", "async")
    warning, _, traceback = run.stderr.partition("duo: warning: the draft failed (out of ink)")[2].partition("\n")
    assert warning == ": the target continues alone"
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "\nValueError: out of ink\n" in traceback

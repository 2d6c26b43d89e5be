"""What options do to the text, where it ends, and that no draft or schedule changes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from duo.config import ModelConfig
from duo.config.engine_config import CACHE_TYPES
from duo.engine.drafter import Drafter
from duo.llama.model import Model
from tests.command import ONE_EACH, Argument, Run, models
from tests.gguf_files import WORDS, tiny_llama
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
    for target, draft in ((recurrent, tiny), (kin["qwen35"], kin["lfm2"])):
        alone, run = duo("-m", target, *text), duo(*models(target, draft), *text)
        assert (run.status, run.n_tokens, run.stdout) == (0, 8, alone.stdout)
        assert "drafted" not in run.stderr
    assert duo("-m", recurrent, *text, "--exact").stdout == duo("-m", recurrent, *text).stdout


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


# Sampling: what options do to the text, and that a draft does nothing to it


PROMPT = ("-p", "Once upon a time", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)
HOT = ("--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0")


def text(*arguments: Argument) -> bytes:
    run = duo(*PROMPT, *arguments)
    assert (run.status, run.warnings) == (0, []), run.stderr
    return run.stdout


def test_the_seed_decides_the_text_and_the_draft_does_not(kin: dict[str, Path]) -> None:
    sampled = ("-m", kin["lfm2"], "--temp", "0.9", "-s")
    alone = text(*sampled, "7")
    assert alone != text(*sampled, "8")
    assert text(*sampled, "7", "-md", kin["llama"], "--schedule", "sync", "--draft", "6") == alone


def test_the_seed_of_a_run_is_reported_and_repeats_its_text(tiny: Path) -> None:
    first = duo("-m", tiny, *PROMPT, *HOT)
    (seed,) = re.findall(r"; seed (\d+)$", first.stderr, re.MULTILINE)
    assert text("-m", tiny, *HOT, "-s", seed) == first.stdout
    assert text("-m", tiny, *HOT) != first.stdout, "each run takes a new seed"
    assert "seed" not in duo("-m", tiny, *PROMPT).stderr, "greedy text needs none"


@pytest.mark.usefixtures("slow_target")  # so that the draft pays
def test_rejection_sampling(tiny: Path) -> None:
    options = ("--temp", "0.9", "-s", "3", "--verify", "rejection", "--schedule", "sync", "--draft", "4", "-v")
    run = duo(*models(tiny, tiny), *PROMPT, *options)
    assert (run.status, run.n_tokens) == (0, 24)
    assert "sampling    mode rejection, seed 3, temperature 0.9" in run.stderr
    assert re.search(r"drafted, [1-9]\d* verified, [1-9]\d* accepted", run.stderr)
    assert text(*models(tiny, tiny), "--verify", "rejection") == text("-m", tiny), "greedy"


@pytest.mark.parametrize("change", ["--repeat-penalty 2", "--presence-penalty 9", "--frequency-penalty 5"])
def test_penalties_change_the_text_and_the_draft_follows(tiny: Path, change: str) -> None:
    plain, changed = text("-m", tiny), text("-m", tiny, *change.split())
    assert changed != plain
    assert text(*models(tiny, tiny), *change.split()) == changed
    assert text("-m", tiny, *change.split(), "--repeat-last-n", "0") == plain


def test_a_biased_token(tiny: Path) -> None:
    model = Model(ModelConfig(tiny))
    token = model.tokenize("▁dog")[-1]
    piece = model.piece(token)
    model.close()
    assert text(*models(tiny, tiny), "-n", "3", "-l", f"{token}+100") == 3 * piece
    assert text(*models(tiny, tiny), "-n", "3", "-l", f"{token}+100", "-l", f"{token}-inf") == text(
        "-m", tiny, "-n", "3"
    )


def test_each_sampling_mode_learns_its_own_acceptance(tiny: Path, tmp_path: Path) -> None:
    env = {"DUO_CONFIG": str(tmp_path)}
    for more in ((), ("--temp", "0.8"), ("--temp", "0.8", "--verify", "rejection")):
        assert duo(*models(tiny, tiny), *PROMPT, "--schedule", "sync", *more, env=env).status == 0
    (profile,) = tmp_path.rglob("tiny+tiny*.json")
    assert set(json.loads(profile.read_text())["policy"]["acceptance"]) == {"greedy", "coupled", "rejection"}


# Where a text ends, and that the report says why. tests/unit/engine proves where


CAT = ("-p", "the cat", "--ignore-eos", "--exact", *ONE_EACH)


def test_stop_strings(kin: dict[str, Path]) -> None:
    arguments = (*models(kin["llama"], kin["llama"]), *CAT, "-n", "40")
    text = duo(*arguments).stdout
    found = re.search(rb"[a-zA-Z]{2,}", text[8:])
    assert found is not None
    stop, escape = found[0].decode(), r"\x" + found[0][:1].hex()
    for given in (stop, escape + stop[1:]):
        run = duo(*arguments, "-r", "zzz", "-r", given)
        assert (run.stopped, run.stdout) == ("stop string", text[: text.index(found[0])])
    assert duo(*arguments, "-r", escape, "--no-escape").stdout == text


# Models in several files, and drafts with another vocabulary


def test_split_models(tiny: Path, tmp_path: Path) -> None:
    first = tiny_llama(tmp_path / "split.gguf", max_tensors=4)
    text = ("-p", "the cat", "-n", "8", "-t", "1")
    assert duo("-m", first, *text).stdout == duo("-m", tiny, *text).stdout != b""


@pytest.mark.usefixtures("slow_target")  # so that the draft is asked
def test_a_draft_with_another_vocabulary(tiny: Path, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "draft.gguf", words=(WORDS[0], "▁lion", *WORDS[2:]))
    text = ("-p", "the cat", "-n", "16", "--exact", "--schedule", "sync", *ONE_EACH)
    plain, drafted = duo("-m", tiny, *text), duo(*models(tiny, path), *text)
    assert (drafted.status, drafted.stdout) == (0, plain.stdout)
    for said in (
        "draft.gguf drafts for tiny.gguf through the text: token 260 is '▁cat' to the target and '▁lion' to",
        "is accepted more often (`duo list` shows which models share one).",
        "; vocabulary translated, ",
    ):
        assert said in drafted.stderr

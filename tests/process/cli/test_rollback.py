"""Targets and drafts whose cache cannot be rolled back at will: as far as it goes, and never a wrong text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import ONE_EACH, SLOW_TARGET, Argument, Run, duo, models
from tests.gguf_files import tiny_hybrid
from tests.serving import LeadProcess

HYBRIDS = ("lfm2", "qwen35")
_TEXT = ("-p", "the cat sat on the mat and", "-n", "80", "--ignore-eos", "--exact", *ONE_EACH)


def plain(target: Path, *more: Argument) -> bytes:
    return duo("-m", target, *_TEXT, *more).stdout


def drafted(path: Path, target: Path, draft: Path, *more: Argument) -> tuple[Run, dict[str, Any]]:
    """A run with the draft beside the target, and far ahead, and what happened to its guesses."""
    arguments = (*models(target, draft), *_TEXT, "--schedule", "async", *more, "--json", path)
    run = duo(*arguments, before=SLOW_TARGET)
    return run, json.loads(path.read_text())["draft"]


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_verifies_what_it_can_take_back(kin: dict[str, Path], tmp_path: Path, name: str) -> None:
    run, statistics = drafted(tmp_path / "run.json", kin[name], kin["llama"])
    assert (run.status, run.n_tokens, run.warnings) == (0, 80, [])
    assert 0 < statistics["accepted"] < statistics["verified"]
    assert 2 < len(statistics["decodes_by_candidates"]) <= 7, "up to six candidates at once"
    assert run.stdout == plain(kin[name])


def test_a_window_is_rolled_back(kin: dict[str, Path], tmp_path: Path) -> None:
    """After as long a prompt, a cache of the window alone would have lost its beginning."""
    prompt = ("-p", 12 * "the cat sat on the mat and ", "-ub", "32", "-n", "60")
    run, statistics = drafted(tmp_path / "run.json", kin["gemma"], kin["llama"], *prompt)
    assert (run.status, run.n_tokens, run.warnings) == (0, 60, [])
    assert 0 < statistics["accepted"] < statistics["verified"]
    assert run.stdout == plain(kin["gemma"], *prompt)


@pytest.mark.parametrize("schedule", ["auto", "sync", "off"])
def test_in_every_schedule(kin: dict[str, Path], schedule: str) -> None:
    run = duo(*models(kin["lfm2"], kin["llama"]), *_TEXT, "--schedule", schedule)
    assert (run.status, run.warnings, run.stdout) == (0, [], plain(kin["lfm2"]))


def test_more_than_it_can_take_back(kin: dict[str, Path]) -> None:
    run = duo(*models(kin["lfm2"], kin["llama"]), *_TEXT, "--draft", "7", "-b", "512")
    assert run.warnings == ["duo: warning: --draft 7: lfm2.gguf can roll back 6 tokens, so no more are verified"]
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"]))
    assert duo(*models(kin["lfm2"], kin["llama"]), *_TEXT, "--draft", "6").warnings == []
    assert duo(*models(kin["lfm2"]), *_TEXT, "--draft", "7").warnings == []


def test_less_granted_than_asked_for(kin: dict[str, Path], tmp_path: Path) -> None:
    grants = "import llama_cpp\nllama_cpp.llama_n_rs_seq = lambda _: 2\n"
    path = tmp_path / "run.json"
    arguments = (*models(kin["lfm2"], kin["llama"]), *_TEXT, "--schedule", "async", "--draft", "5", "--json", path)
    run = duo(*arguments, before=SLOW_TARGET + grants)
    assert run.warnings == ["duo: warning: --draft 5: lfm2.gguf can roll back 2 tokens, so no more are verified"]
    assert len(json.loads(path.read_text())["draft"]["decodes_by_candidates"]) == 3
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"]))


@pytest.mark.parametrize("options", [("-b", "1"), ("-ub", "3"), ("-c", "90", "--draft", "300"), ("-n", "1", "-c", "8")])
def test_batches_too_small_for_llama_cpp(kin: dict[str, Path], options: tuple[str, ...]) -> None:
    """It aborts the process where what may be taken back does not fit a batch or the context."""
    arguments = ("-p", "the cat", "-n", "40", "--ignore-eos", "--exact", *ONE_EACH, *options)
    run = duo(*models(kin["lfm2"], kin["llama"]), *arguments)
    assert (run.status, run.stdout) == (0, duo("-m", kin["lfm2"], *arguments).stdout)


def test_as_many_layers_as_real_models_have(tiny: Path, tmp_path: Path) -> None:
    """llama.cpp aborts the process where the states of all layers are more than its graph holds."""
    deep = tiny_hybrid(tmp_path / "deep.gguf", n_layer=30)
    run = duo(*models(deep, tiny), "-p", "the cat", "-n", "20", *ONE_EACH, "--schedule", "sync")
    assert (run.status, run.n_tokens, run.warnings) == (0, 20, [])


def test_a_hybrid_is_no_draft(kin: dict[str, Path]) -> None:
    """It would have to take back its lead, which it decoded token by token."""
    run = duo(*models(kin["qwen35"], kin["lfm2"]), *_TEXT)
    assert run.warnings == ["duo: warning: lfm2.gguf cannot roll back its cache: speculation is off"]
    assert (run.status, run.stdout) == (0, plain(kin["qwen35"]))


def test_check_and_tune(kin: dict[str, Path]) -> None:
    both = models(kin["lfm2"], kin["llama"])
    run = duo("check", *both, "-n", "20", "--exact", *ONE_EACH, "--schedule", "sync")
    assert (run.status, run.warnings) == (0, []), run.stderr
    assert run.text.splitlines()[-1] == "All 5 texts are identical: the draft changes nothing but the speed."
    assert duo("tune", *both).status == 0


def test_a_lead_keeps_what_it_can(kin: dict[str, Path]) -> None:
    """What it has read is kept if the next text goes on from there, and read again if too much is in the way."""
    texts = [
        ("the cat sat", 1),
        ("the cat sat on the mat and", 30),
        ("the cat sat on the mat and", 30),
        ("the dog", 30),
    ]
    with LeadProcess(kin["lfm2"], "-md", kin["llama"], "-td", "1", "--exact") as lead:
        written, cached = [], []
        for prompt, n in texts:
            written.append(lead.write(prompt, n))
            cached.append(lead.metric("duo:prompt_tokens_cached_total"))
    assert cached[0] == 0 < cached[1] == cached[2] == cached[3], "of the second text, the third could keep a part"
    for (prompt, n), text in zip(texts, written, strict=True):
        with LeadProcess(kin["lfm2"], "--exact") as alone:
            assert alone.write(prompt, n) == text

"""Sampling: what options do to the text, and that a draft does nothing to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.llama.model import Model
from tests.command import ONE_EACH, Argument, assert_refused, models
from tests.unit.cli.runner import duo

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
    run = duo("-m", tiny, *PROMPT, "-l", "999999+1")
    assert_refused(run, "-l: no token 999999 in a vocabulary of", status=2)


def test_each_sampling_mode_learns_its_own_acceptance(tiny: Path, tmp_path: Path) -> None:
    env = {"DUO_CONFIG": str(tmp_path)}
    for more in ((), ("--temp", "0.8"), ("--temp", "0.8", "--verify", "rejection")):
        assert duo(*models(tiny, tiny), *PROMPT, "--schedule", "sync", *more, env=env).status == 0
    (profile,) = tmp_path.rglob("tiny+tiny*.json")
    assert set(json.loads(profile.read_text())["policy"]["acceptance"]) == {"greedy", "coupled", "rejection"}

"""The commands of contestants, and what is read from their reports."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.contestants import DuoRun, Setup, _parse_duo, ngrams
from duo.bench.peers import Program
from duo.bench.process import Cost

FIGURES = {"tokens": 64, "tokens_per_s": 20.0, "time_to_first_token_s": 0.1, "tokens_per_decode": 1.5,
           "target_ms_per_decode": 40.0, "seconds": 3.0}  # fmt: skip
SOURCE = {"verified": 10, "accepted": 4, "accept_rate": 0.4}
DRAFT = SOURCE | {"accept_rate_by_position": [0.7, 0.5], "ms_per_token": 5.0, "hidden": 0.0, "unused": 0.2}


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup("", Path("target"), Path("draft"), (), 1, 64, ["duo"], tmp_path, (), tmp_path, ExitStack())


def test_every_method_without_a_draft_model_in_every_size(setup: Setup) -> None:
    found = ngrams(setup)
    assert len({contestant.name for contestant in found}) == len(found) == 4 * 5
    options = {}
    for contestant in found:
        assert isinstance(contestant.writer, Program)
        _, _, more = " ".join(contestant.writer.command(setup.job)).partition(" --spec-type ")
        assert more
        options[contestant.name.removeprefix("llama-speculative-simple ")] = more
    assert options["ngram-simple"] == "ngram-simple", "the program's own sizes"
    assert options["ngram-map-k4v n=3, m=16"] == (
        "ngram-map-k4v --spec-ngram-map-k4v-size-n 3 --spec-ngram-map-k4v-size-m 16"
    )
    assert options["ngram-mod n=4, m=8"] == (
        "ngram-mod --spec-ngram-mod-n-match 4 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 8"
    )


def read(setup: Setup, **more: object) -> DuoRun:
    job = replace(setup.job, prompt_file=setup.folder / "prompt.txt")
    report = {"prompt": {"tokens_per_s": 100.0}, "generation": FIGURES, "draft": None, "lookup": None, "policy": None}
    job.prompt_file.with_name("report.json").write_text(json.dumps(report | more), encoding="utf-8")
    found = _parse_duo(job, Cost("a text", "", 0, 5.0, 0))
    assert isinstance(found, DuoRun)
    return found


def test_the_figures_of_both_sources_and_of_the_forecast(setup: Setup) -> None:
    policy = {"forecast_tokens_per_s": {"off": 16.0, "sync": 24.0, "async": 20.0}, "predicted_tokens_per_s": 23.0}
    found = read(setup, draft=DRAFT, lookup=SOURCE, policy=policy)
    assert (found.n_verified, found.n_accepted, found.first_accept_rate) == (20, 8, 0.7)
    assert (found.forecast_tokens_per_s, found.forecast_gain) == (24.0, 1.5)
    assert read(setup, lookup=SOURCE).n_verified == 10


def test_a_run_of_the_target_alone(setup: Setup) -> None:
    nothing: dict[str, dict[str, float]] = {"forecast_tokens_per_s": {}}
    for policy in (None, nothing):
        found = read(setup, policy=policy)
        assert (found.n_verified, found.first_accept_rate) == (None, None)
        assert (found.forecast_tokens_per_s, found.forecast_gain) == (None, None)
        assert (found.text, found.startup_s) == ("a text", 2.0)

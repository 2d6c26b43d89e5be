"""What is not as asked for, but no reason to stop: a warning and exit status 0."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duo.llama.devices import gpus
from tests.command import ONE_EACH, SLOW_TARGET, duo

# The draft makes a few guesses and dies.
DIES = """
from duo.engine.drafter import Drafter
step, n_steps = Drafter.step, 0
def fail(self):
    global n_steps
    n_steps += 1
    if n_steps > 5:
        raise ValueError("out of ink")
    return step(self)
Drafter.step = fail
"""

_SHORT = ("-p", "the cat", "-n", "8", *ONE_EACH)


@pytest.mark.skipif(bool(gpus()), reason="this build has a GPU")
def test_layers_for_a_gpu_that_is_not_there(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    plain = duo("-m", target, "-md", draft, *_SHORT, "-ngl", "0", "-ngld", "auto")
    assert plain.warnings == []
    for options, said in (
        (["-ngl", "99"], "-ngl"),
        (["-ngld", "all"], "-ngld"),
        (["-ngl", "1", "-ngld", "1"], "-ngl and -ngld"),
    ):
        run = duo("-m", target, "-md", draft, *_SHORT, *options)
        (warning,) = run.warnings
        assert warning.startswith(
            f"duo: warning: {said}: all layers stay on the CPU, because llama.cpp was built without"
        )
        assert "; this builds it with one: " in warning
        assert (run.status, run.stdout) == (0, plain.stdout)


@pytest.mark.parametrize("drafted", [True, False])
def test_a_model_that_cannot_roll_back_runs_plain(tiny: Path, recurrent: Path, drafted: bool) -> None:
    target, draft = (recurrent, tiny) if drafted else (tiny, recurrent)
    plain, run = duo("-m", target, *_SHORT), duo("-m", target, "-md", draft, *_SHORT)
    assert run.warnings == ["duo: warning: recurrent.gguf cannot roll back its cache: speculation is off"]
    assert (run.status, run.n_tokens, run.stdout) == (0, 8, plain.stdout)
    assert plain.warnings == []
    assert "drafted" not in run.stderr


def test_exact_on_a_model_that_cannot_roll_back(tiny: Path, recurrent: Path) -> None:
    plain = duo("-m", recurrent, *_SHORT)
    off = "duo: warning: recurrent.gguf cannot roll back its cache: its decodes are not exact"
    run = duo("-m", recurrent, *_SHORT, "--exact")
    assert (run.status, run.stdout, run.warnings) == (0, plain.stdout, [off])
    run = duo("-m", recurrent, "-md", tiny, *_SHORT, "--exact")
    assert (run.status, run.stdout, run.warnings[0]) == (0, plain.stdout, off)


def test_exact_knows_the_quantisations(tiny: Path, demo_pair: tuple[Path, Path]) -> None:
    for model in (tiny, *demo_pair):  # F32, F16, Q4_0
        assert duo("-m", model, "-p", "x", "-n", "1", "-t", "1", "--exact").warnings == []


def test_more_threads_than_cores(tiny: Path) -> None:
    many = str(8 * (os.cpu_count() or 1))
    for options in (["-t", many], ["-md", tiny, "-t", many, "-td", "1"], ["-md", tiny, "-t", "1", "-td", many]):
        run = duo("-m", tiny, "-p", "the cat", "-n", "2", *options)
        (warning,) = run.warnings
        assert "cores will slow each other down" in warning
        assert (run.status, run.n_tokens) == (0, 2)


@pytest.mark.parametrize("options", [[], ["-t", "1"], ["--draft", "0"]])
def test_what_duo_chooses_needs_no_warning(tiny: Path, options: list[str]) -> None:
    assert duo("-m", tiny, "-md", tiny, "-p", "the cat", "-n", "2", *options).warnings == []


@pytest.mark.parametrize("schedule", ["async", "sync", "auto"])
def test_a_draft_that_dies(demo_pair: tuple[Path, Path], schedule: str) -> None:
    target, draft = demo_pair
    arguments = ("-m", target, "-p", "The capital of France is", "-n", "28", "--exact", *ONE_EACH)
    run = duo(*arguments, "-md", draft, "--schedule", schedule, before=DIES)
    assert run.warnings == ["duo: warning: the draft failed (out of ink): the target goes on alone"]
    assert (run.status, run.n_tokens, run.stdout) == (0, 28, duo(*arguments).stdout)
    assert "Traceback" not in run.stderr


def test_with_v_it_says_where_the_draft_died(tiny: Path) -> None:
    arguments = ("-m", tiny, "-md", tiny, "-p", "the cat", "-n", "28", "--ignore-eos", "--schedule", "async", *ONE_EACH)
    run = duo(*arguments, "-v", before=SLOW_TARGET + DIES)
    warning, _, traceback = run.stderr.partition("duo: warning: the draft failed (out of ink)")[2].partition("\n")
    assert warning == ": the target goes on alone"
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "\nValueError: out of ink\n" in traceback
    assert run.n_tokens == 28

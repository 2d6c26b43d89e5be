"""Contexts that do not fit the device are refused before llama.cpp ends the process or the driver takes more."""

from __future__ import annotations

import re
from pathlib import Path

from duo.llama.devices import gpus
from tests.command import duo

CELL = 2 * 30 * 192 * 2  # bytes of the demo target's KV cache for each token


def refused(target: Path, n_ctx: int) -> tuple[str, int]:
    """The error, and the number of tokens that fit according to it."""
    run = duo("-m", target, "-p", "a", "-n", "2", "-t", "1", "-ngl", "99", "-c", str(n_ctx), "--no-warmup")
    errors = [line for line in run.stderr.splitlines() if "error" in line]
    assert run.status == 1, run.stderr
    assert len(errors) == 1, run.stderr
    fits = re.search(r"at most (\d+) tokens fit \(-c\); fewer layers there \(-ngl\)", errors[0])
    assert fits is not None, errors[0]
    return errors[0], int(fits[1])


def test_a_context_larger_than_the_device(demo_pair: tuple[Path, Path], gpu: str) -> None:
    total = gpus()[0].memory[1]
    error, fits = refused(demo_pair[0], total // CELL + 1000)
    assert gpu in error
    assert 0 < fits * CELL < total


def test_what_is_said_to_fit_does(demo_pair: tuple[Path, Path], gpu: str) -> None:
    _, fits = refused(demo_pair[0], gpus()[0].memory[1] // CELL + 1000)
    run = duo("-m", demo_pair[0], "-p", "a", "-n", "2", "-t", "1", "-ngl", "99", "-c", str(fits), "--no-warmup")
    assert run.status == 0, run.stderr


def test_automatic_layers_leave_the_device_to_what_fits(demo_pair: tuple[Path, Path], gpu: str) -> None:
    n_ctx = gpus()[0].memory[1] // CELL + 1000
    run = duo("-m", demo_pair[0], "-p", "a", "-n", "2", "-t", "1", "-c", str(n_ctx), "--no-warmup")
    assert run.status == 0, run.stderr
    assert re.search(r"target [12]?\d of 31", run.stderr), run.stderr


def test_both_models_count(demo_pair: tuple[Path, Path], gpu: str) -> None:
    free = "from duo.llama.devices import Device; Device.memory = property(lambda self: (300 * 2**20, 2**40))"
    layers = ["-ngl", "31", "-ngld", "31"]
    run = duo("-m", demo_pair[0], "-md", demo_pair[1], "-p", "a", "-n", "2", *layers, before=free)
    assert run.status == 1
    assert f"-ngl and -ngld: the layers need 0.3 GiB on {gpu}, and 0.3 GiB are free: " in run.stderr

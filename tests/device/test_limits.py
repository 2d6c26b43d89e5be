"""Contexts that do not fit the device are refused before llama.cpp ends the process or the driver takes more."""

from __future__ import annotations

import re
from pathlib import Path

from tests.command import Run, duo

CELL = 2 * 30 * 192 * 2  # bytes of the demo target's KV cache for each token
FREE = 2**31  # bytes of each device, as code for `before` says
TOO_MANY = FREE // CELL + 1000  # tokens whose cache is larger
BEFORE = f"from duo.llama.devices import Device; Device.memory = property(lambda self: ({FREE}, 2**40))"


def run(target: Path, n_ctx: int, *more: str) -> Run:
    options = ("-n", "2", "-t", "1", *more, "-c", str(n_ctx), "--no-warmup")
    return duo("-m", target, "-p", "a", *options, before=BEFORE)


def test_a_context_larger_than_the_device_is_refused_and_what_is_said_to_fit_does(
    demo_pair: tuple[Path, Path], gpu: str
) -> None:
    refused = run(demo_pair[0], TOO_MANY, "-ngl", "99")
    assert refused.status == 1, refused.stderr
    (error,) = (line for line in refused.stderr.splitlines() if "error" in line)
    fits = re.search(r"at most (\d+) tokens fit \(-c\); fewer layers there \(-ngl\)", error)
    assert fits is not None, error
    assert gpu in error
    assert 0 < int(fits[1]) < TOO_MANY
    fitting = run(demo_pair[0], int(fits[1]), "-ngl", "99")
    assert fitting.status == 0, fitting.stderr


def test_automatic_layers_leave_the_device_to_what_fits(demo_pair: tuple[Path, Path], gpu: str) -> None:
    automatic = run(demo_pair[0], TOO_MANY)
    assert automatic.status == 0, automatic.stderr
    assert re.search(r"target [12]?\d of 31", automatic.stderr), automatic.stderr


def test_both_models_count(demo_pair: tuple[Path, Path], gpu: str) -> None:
    free = "from duo.llama.devices import Device; Device.memory = property(lambda self: (300 * 2**20, 2**40))"
    layers = ["-ngl", "31", "-ngld", "31"]
    both = duo("-m", demo_pair[0], "-md", demo_pair[1], "-p", "a", "-n", "2", *layers, before=free)
    assert both.status == 1
    assert f"-ngl and -ngld: the layers need 0.3 GiB on {gpu}, and 0.3 GiB are free: " in both.stderr

"""Placements of the layers of both models by the options of the command. By `load()`: test_texts.py."""

import re
from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, Run, assert_refused, duo, models
from tests.device.helpers import PROMPT

TEXT = ("-p", PROMPT, "-n", "12", "--ignore-eos", "--exact", "--lookup", "off", "--schedule", "sync", *ONE_EACH)


@pytest.fixture(scope="module")
def text(deep_pair: tuple[Path, Path]) -> bytes:
    """What the command writes on the CPU."""
    run = duo(*models(*deep_pair), *TEXT, "-ngl", "0", "-ngld", "0")
    assert run.status == 0, run.stderr
    return run.stdout


def on_device(run: Run, gpu: str) -> list[int]:
    """The layers of each model, output included, that are on the device, according to the log."""
    assert run.status == 0, run.stderr
    _, *loads = run.stderr.split(": offloaded ")  # which is also said where there is no device
    buffer = rf"({gpu}|Meta\(.*?\)) model buffer size"
    return [int(load.partition("/")[0]) if re.search(buffer, load) else 0 for load in loads]


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        (("-ngl", "1", "-ngld", "2"), [1, 2]),
        (("-ngl", "2", "-ngld", "all"), [2, 4]),
        (("-ngl", "auto", "-ngld", "0"), [4, 0]),
        (("-dev", "none", "-devd", "GPU", "-ngl", "99", "-ngld", "99"), [0, 4]),
        (("-dev", "GPU", "-devd", "none", "-ngl", "auto", "-ngld", "auto"), [4, 0]),
        (("-ngl", "99", "-ngld", "0", "-sm", "none", "-mg", "0"), [4, 0]),
        (("-ngl", "2", "-ngld", "0", "-sm", "layer", "-ts", "1"), [2, 0]),
        (("-ngl", "99", "-ngld", "0", "-ts", "3,1"), [4, 0]),
        (("-ngl", "99", "-ngld", "0", "-sm", "tensor"), [4, 0]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_the_options_place_the_layers(
    deep_pair: tuple[Path, Path], gpu: str, text: bytes, options: tuple[str, ...], layers: list[int]
) -> None:
    named: list[Argument] = [gpu if option == "GPU" else option for option in options]
    run = duo(*models(*deep_pair), *TEXT, *named, "-v")
    assert on_device(run, gpu) == layers
    assert run.stdout == text


def test_rows_are_split_or_the_device_is_named(deep_pair: tuple[Path, Path], gpu: str, text: bytes) -> None:
    """Vulkan cannot split rows; llama.cpp says so when it loads the model."""
    run = duo(*models(*deep_pair), *TEXT, "-ngl", "99", "-ngld", "0", "-sm", "row")
    if run.status:
        assert_refused(run, f"device {gpu} does not support split buffers")
    else:
        assert run.stdout == text

"""What the tests on a device share. Nothing is skipped: without a device they all fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gguf_files import tiny_llama

if TYPE_CHECKING:
    from duo.engine.engine import Engine

# Without the first, llama.cpp ignores Vulkan devices that are no GPUs, such as Mesa's software driver. The others turn
# off what ends the process inside Mesa 22.3, with one model on one thread, but not inside Mesa 25, which compiles
# several times as long: see benchmarks/NOTES.md. llama.cpp reads them when it is loaded.
for name, value in (
    ("GGML_VK_VISIBLE_DEVICES", "0"),
    ("GGML_VK_DISABLE_FUSION", "1"),
    ("GGML_VK_DISABLE_GRAPH_OPTIMIZE", "1"),
):
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def gpu() -> str:
    """The name of the first GPU device, such as `Vulkan0`."""
    from duo.llama.devices import gpus

    devices = gpus()
    assert devices, "llama.cpp sees no GPU device: run make test-vulkan"
    return devices[0].name


def _pair(folder: Path, n_layer: int) -> tuple[Path, Path]:
    """A target, and a draft that is often right."""
    target = tiny_llama(folder / "target.gguf", n_layer=n_layer, seed=2, depth=0.05)
    return target, tiny_llama(folder / "draft.gguf", n_layer=n_layer, seed=2, depth=0.02)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of one layer: without near-ties."""
    return _pair(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="session")
def deep_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of three layers, which can be in different places."""
    return _pair(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture(scope="session")
def cpu(deep_pair: tuple[Path, Path]) -> Iterator[Engine]:
    """`deep_pair` on the CPU."""
    from tests.device.helpers import opened

    with opened(deep_pair) as engine:
        yield engine

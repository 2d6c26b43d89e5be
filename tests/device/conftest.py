"""What the tests on a device share. Nothing is skipped: without a device they all fail."""

from __future__ import annotations

import os

import pytest

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

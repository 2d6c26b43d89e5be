"""What is said where GPUs are asked for and llama.cpp finds none."""

from __future__ import annotations

from unittest import mock

import pytest

from duo.cli import load
from duo.llama.devices import Device
from tests.unit.cli.runner import duo

HIDDEN = {"GGML_VK_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}
SAID = "llama.cpp finds no GPU for Vulkan with GGML_VK_VISIBLE_DEVICES=3 (see duo doctor)"


def test_commands_say_it() -> None:
    with (
        mock.patch.object(load, "built_gpu_backends", return_value=["Vulkan"]),
        mock.patch.object(load, "gpus", return_value=[]),
    ):
        listed = duo("--list-devices", env=HIDDEN)
        named = duo("-m", "missing.gguf", "-p", "x", "-dev", "Vulkan0", env=HIDDEN)
        layers = duo("-m", "missing.gguf", "-p", "x", "-ngl", "99", env=HIDDEN)
    assert (listed.status, listed.stderr) == (0, f"duo: warning: {SAID}\n")
    assert "CPU: " in listed.text
    assert (named.status, named.stderr) == (2, f"duo: error: -dev: {SAID}\n")
    assert layers.warnings == [f"duo: warning: -ngl: all layers stay on the CPU: {SAID}"]


@pytest.mark.parametrize(("built", "found"), [([], []), (["Vulkan"], [Device("Vulkan0", "a card", "GPU", 0)])])
def test_nothing_is_missing(built: list[str], found: list[Device]) -> None:
    with (
        mock.patch.object(load, "built_gpu_backends", return_value=built),
        mock.patch.object(load, "gpus", return_value=found),
    ):
        assert duo("--list-devices", env=HIDDEN).stderr == ""

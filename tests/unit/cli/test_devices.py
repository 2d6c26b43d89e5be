"""What is said where GPUs are asked for and llama.cpp finds none."""

from __future__ import annotations

import pytest

from duo.cli import load
from duo.llama.devices import Device
from tests.command import assert_refused
from tests.unit.cli.runner import duo

HIDDEN = {"GGML_VK_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}
SAID = "llama.cpp finds no GPU for Vulkan with GGML_VK_VISIBLE_DEVICES=3 (see duo doctor)"
CARD = Device("Vulkan0", "a card", "GPU", 0)


@pytest.mark.parametrize(("built", "found"), [(["Vulkan"], []), ([], []), (["Vulkan"], [CARD])])
def test_commands_say_what_is_missing(built: list[str], found: list[Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "built_gpu_backends", lambda: built)
    monkeypatch.setattr(load, "gpus", lambda: found)
    listed = duo("--list-devices", env=HIDDEN)
    assert "CPU: " in listed.text
    if found or not built:
        assert (listed.status, listed.stderr) == (0, "")
        return
    assert (listed.status, listed.stderr) == (0, f"duo: warning: {SAID}\n")
    run = ("-m", "missing.gguf", "-p", "x")
    assert_refused(duo(*run, "-dev", "Vulkan0", env=HIDDEN), f"-dev: {SAID}\n", status=2)
    layers = duo(*run, "-ngl", "99", env=HIDDEN)
    assert layers.warnings == [f"duo: warning: -ngl: all layers stay on the CPU: {SAID}"]

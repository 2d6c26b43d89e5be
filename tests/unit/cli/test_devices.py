"""What is said where GPUs are asked for and llama.cpp finds none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from duo.cli import devices
from duo.cli.devices import no_gpu_found
from duo.llama.devices import Device
from tests.unit.cli.runner import duo


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The GPU back ends of this build; it finds no GPU, and no variable is set."""
    backends: list[str] = []
    monkeypatch.setattr(devices, "built_gpu_backends", lambda: backends)
    monkeypatch.setattr(devices, "gpus", list)
    with mock.patch.dict(os.environ, clear=True):
        yield backends


def test_a_build_without_a_gpu_back_end_misses_none(built: list[str]) -> None:
    assert built == []
    assert no_gpu_found() is None


def test_the_back_ends_are_named(built: list[str]) -> None:
    built += ["CUDA", "Vulkan"]
    assert no_gpu_found() == "llama.cpp finds no GPU for CUDA, Vulkan (see duo doctor)"


def test_their_variables_are_named(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    built.append("Vulkan")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "")
    assert no_gpu_found() == (
        "llama.cpp finds no GPU for Vulkan, and GGML_VK_VISIBLE_DEVICES='' is set (see duo doctor)"
    )
    monkeypatch.setenv("VK_ICD_FILENAMES", "/missing")
    assert "GGML_VK_VISIBLE_DEVICES='' and VK_ICD_FILENAMES=/missing are set" in str(no_gpu_found())


def test_nothing_is_missed_where_a_gpu_is_found(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    built.append("Vulkan")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(devices, "gpus", lambda: [Device("Vulkan0", "a card", "GPU", 0)])
    assert no_gpu_found() is None


@pytest.mark.usefixtures("built")
def test_commands_say_it(built: list[str]) -> None:
    built.append("Vulkan")
    env = {"GGML_VK_VISIBLE_DEVICES": "3"}
    said = "llama.cpp finds no GPU for Vulkan, and GGML_VK_VISIBLE_DEVICES=3 is set (see duo doctor)\n"
    run = duo("--list-devices", env=env)
    assert (run.status, run.stderr) == (0, f"duo: warning: {said}")
    assert "CPU: " in run.text
    run = duo("-m", "missing.gguf", "-p", "x", "-dev", "Vulkan0", env=env)
    assert (run.status, run.stderr) == (2, f"duo: error: -dev: {said}")
    run = duo("-m", "missing.gguf", "-p", "x", "-ngl", "99", env=env)
    assert run.stderr.splitlines()[0] == f"duo: warning: -ngl: all layers stay on the CPU: {said}".rstrip()

"""The back ends for GPUs of a build, also those that could not start, and the variables that hide devices."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.llama import devices
from duo.llama.build import GPU_BACKENDS, hiding_variables
from duo.llama.devices import built_gpu_backends
from tests.command import ROOT

ALL_VARIABLES = {name for backend in GPU_BACKENDS.values() for name in backend.variables}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if llama.cpp were there, with only the CPU's back end started."""
    monkeypatch.setattr(devices, "ggml", lambda: SimpleNamespace(_name=str(tmp_path / "libggml.so")))
    monkeypatch.setattr(devices, "list_backends", lambda: ["CPU"])
    return tmp_path


def test_a_back_end_that_did_not_start_is_known_by_its_library(folder: Path) -> None:
    for name in ("libggml.so", "libggml-cpu.so", "libggml-rpc.so", "libggml-base.so.0"):
        (folder / name).touch()
    assert built_gpu_backends() == []
    (folder / "libggml-vulkan.so").touch()
    assert built_gpu_backends() == ["Vulkan"]
    (folder / "libggml-hip.so.0").touch()
    (folder / "libggml-metal.dylib").touch()
    assert set(built_gpu_backends()) == {"Vulkan", "ROCm", "MTL"}


def test_each_back_end_has_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert hiding_variables() == {}
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert hiding_variables(["Vulkan"]) == {"GGML_VK_VISIBLE_DEVICES": ""}, "set, and empty"
    assert hiding_variables(["CUDA"]) == hiding_variables(["ROCm"]) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert hiding_variables(["SYCL"]) == {}
    assert hiding_variables() == {"GGML_VK_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "-1"}


def test_the_document_has_every_variable() -> None:
    document = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert [name for name in sorted(ALL_VARIABLES) if f"`{name}`" not in document] == []

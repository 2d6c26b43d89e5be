"""The back ends for GPUs of a build, also those that could not start, and the variables that hide devices."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.llama import devices
from duo.llama.build import GPU_BACKENDS
from duo.llama.devices import built_gpu_backends
from tests.command import ROOT


def test_a_back_end_that_did_not_start_is_known_by_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "ggml", lambda: SimpleNamespace(_name=str(tmp_path / "libggml.so")))
    monkeypatch.setattr(devices, "list_backends", lambda: ["CPU"])
    for name in ("libggml.so", "libggml-cpu.so", "libggml-rpc.so", "libggml-base.so.0"):
        (tmp_path / name).touch()
    assert built_gpu_backends() == []
    for name in ("libggml-vulkan.so", "libggml-hip.so.0", "libggml-metal.dylib"):
        (tmp_path / name).touch()
    assert set(built_gpu_backends()) == {"Vulkan", "ROCm", "MTL"}


def test_the_document_has_every_variable() -> None:
    document = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in document for names in GPU_BACKENDS.values() for name in names)

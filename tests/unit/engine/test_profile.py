"""What a profile is stored under: everything that affects the cost of a decode."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.engine import profile
from duo.engine.profile import find_profile
from duo.llama.devices import list_devices

CONFIG = EngineConfig()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def models(tmp_path: Path) -> list[ModelConfig]:
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf")]
    for path in paths:
        path.write_bytes(b"weights")
    return [ModelConfig(path) for path in paths]


def test_the_same_pair_has_the_same_profile(models: list[ModelConfig]) -> None:
    path = find_profile(CONFIG, models).path
    assert path == find_profile(EngineConfig(), [replace(model) for model in models]).path
    assert path == find_profile(replace(CONFIG, warmup=False, schedule="sync", draft_n_max=3, n_ctx=9), models).path


@pytest.mark.parametrize(
    "options",
    [
        {"n_threads": 1}, {"draft_n_threads": 1}, {"cpu_range": "0-0"}, {"draft_cpu_range": "0-0"},
        {"flash_attn": "on"}, {"type_k": "f32"}, {"type_v": "f32"}, {"exact": True},
    ],
)  # fmt: skip
def test_options(models: list[ModelConfig], options: dict[str, object]) -> None:
    assert find_profile(replace(CONFIG, **options), models).path != find_profile(CONFIG, models).path  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "place",
    [{"n_gpu_layers": 3}, {"devices": ("GPU0",)}, {"rpc_servers": ("a:1",)}, {"tensor_split": (1.0,)}, {"main_gpu": 1}],
)
@pytest.mark.parametrize("i", [0, 1], ids=["target", "draft"])
def test_where_the_layers_are(models: list[ModelConfig], place: dict[str, object], i: int) -> None:
    moved = [replace(model, **place) if i == j else model for j, model in enumerate(models)]  # type: ignore[arg-type]
    assert find_profile(CONFIG, moved).path != find_profile(CONFIG, models).path


def _resize(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"more weights")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _touch(path: Path) -> None:
    """Another file of the same size."""
    now = path.stat()
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 1))


@pytest.mark.parametrize("change", [_resize, _touch])
@pytest.mark.parametrize("i", [0, 1], ids=["target", "draft"])
def test_another_file_of_the_same_name(models: list[ModelConfig], change: Callable[[Path], None], i: int) -> None:
    before = find_profile(CONFIG, models).path
    change(models[i].path)
    assert find_profile(CONFIG, models).path != before


def test_any_part_of_a_split_model(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"weights")
    model = ModelConfig(parts[0])
    before = find_profile(CONFIG, [model]).path
    _touch(parts[1])
    assert find_profile(CONFIG, [model]).path != before


def test_another_path(models: list[ModelConfig], tmp_path: Path) -> None:
    before = find_profile(CONFIG, models).path
    moved = models[0].path.rename(tmp_path / "c.gguf")
    assert find_profile(CONFIG, [replace(models[0], path=moved), models[1]]).path != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("usable_cores", 77),
        ("list_backends", ["CPU", "CUDA"]),
        ("system_info", "CPU : AVX512 = 1"),
        ("versions", {"llama-cpp-python": "0.3.36", "llama.cpp": "another"}),
        ("versions", {"llama-cpp-python": "another", "llama.cpp": "0.5.0-dev"}),
        ("list_devices", []),
    ],
)
def test_another_machine_or_library(
    models: list[ModelConfig], monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(profile, "versions", lambda: {"llama-cpp-python": "0.3.36", "llama.cpp": "0.5.0-dev"})
    before = find_profile(CONFIG, models).path
    monkeypatch.setattr(profile, name, lambda: value)
    assert find_profile(CONFIG, models).path != before


def test_another_processor(models: list[ModelConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp names it among the devices."""
    (cpu,) = (device for device in list_devices() if device.kind == "CPU")
    assert cpu.description
    before = find_profile(CONFIG, models).path
    monkeypatch.setattr(profile, "list_devices", lambda: [replace(cpu, description="Another CPU")])
    assert find_profile(CONFIG, models).path != before

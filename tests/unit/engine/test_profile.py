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
from duo.spec.policy import Policy

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


# What drafts of one target share


def learned(target_s: dict[int, float], draft_s: float) -> Policy:
    made = Policy(8, 16)
    for n, seconds in target_s.items():
        made.alone.add_target(n, seconds)
    made.alone.add_draft(draft_s)
    return made


def kept(models: list[ModelConfig]) -> Policy:
    made = Policy(8, 16)
    made.restore_kept(find_profile(CONFIG, models).load().get("policy"))
    return made


@pytest.fixture
def other(tmp_path: Path, models: list[ModelConfig]) -> list[ModelConfig]:
    """The same target with another draft."""
    path = tmp_path / "c.gguf"
    path.write_bytes(b"other weights")
    return [models[0], ModelConfig(path)]


def test_the_times_of_a_target_are_those_of_its_last_run_with_any_draft(
    models: list[ModelConfig], other: list[ModelConfig]
) -> None:
    assert not kept(other).alone.target_s(1)
    find_profile(CONFIG, models).save({"policy": learned({1: 0.1, 4: 0.2}, 0.01).state()})
    first = kept(other)
    assert (first.alone.target(1).value, first.alone.target(4).value) == (0.1, 0.2)
    assert not first.alone.draft_s, "of another draft"
    find_profile(CONFIG, other).save({"policy": learned({1: 0.3}, 0.05).state()})
    again = kept(models)
    assert (again.alone.target(1).value, again.alone.target(4).value) == (0.3, 0), "all of the last run"
    assert again.alone.draft_s == 0.01


def test_the_target_alone_begins_with_the_times_that_its_drafts_have_measured(models: list[ModelConfig]) -> None:
    find_profile(CONFIG, models).save({"policy": learned({1: 0.1}, 0.01).state()})
    assert kept(models[:1]).alone.target(1).value == 0.1


def test_another_number_of_threads_is_not_shared(models: list[ModelConfig], other: list[ModelConfig]) -> None:
    tuned = {"policy": learned({1: 0.1}, 0.01).state(), "threads": {"target": 99, "draft": 1, "beside": [1, 1]}}
    find_profile(CONFIG, models).save(tuned)
    assert not kept(other).alone.target_s(1)
    assert kept(models).alone.target_s(1) == 0.1


@pytest.mark.parametrize("damage", [None, 7, [], {"costs": 3}, {"costs": {"0": []}}])
def test_a_damaged_profile_of_the_target_damages_no_other(models: list[ModelConfig], damage: object) -> None:
    find_profile(CONFIG, models).save({"policy": learned({1: 0.1}, 0.01).state()})
    find_profile(CONFIG, models[:1]).save({"policy": damage})
    assert kept(models).alone.target_s(1) == 0.1
    find_profile(CONFIG, models).save({"policy": learned({1: 0.2}, 0.01).state()})
    assert kept(models[:1]).alone.target_s(1) == 0.2

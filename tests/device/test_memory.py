"""What llama.cpp allocates on a device, against the estimates from the file's header."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.llama.context import Context
from duo.llama.devices import gpus
from duo.llama.model import Model
from duo.llama.model_size import ModelSize, model_size
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_qwen35

MIB = 1 << 20
LOGGED = 0.01  # MiB: precision of the log
LAYERS = 20


def large_vocabulary(path: Path) -> Path:
    return tiny_llama(path, padding=20_000)


def many_layers(path: Path) -> Path:
    return tiny_hybrid(path, n_layer=LAYERS)


def sliding_window(path: Path) -> Path:
    return tiny_gemma(path, window=16)


def allocated(path: Path, n_layers: int, config: ContextConfig, log: pytest.LogCaptureFixture, gpu: str) -> list[float]:
    """MiB of weights, KV cache and compute buffers on the device."""
    log.clear()
    log.set_level(logging.INFO, "duo.llama")
    with closing(Model(ModelConfig(path, n_gpu_layers=n_layers))) as model, closing(Context(model, config)):
        lines = log.messages
    sizes = [
        [re.search(rf"{gpu} {name} buffer size = *([\d.]+) MiB", line) for line in lines]
        for name in ("model", "KV", "compute")
    ]
    return [sum(float(match[1]) for match in found if match) for found in sizes]


def expected(size: ModelSize, n_layers: int, config: ContextConfig) -> list[float]:
    """The same, estimated."""
    n_all = len(size.layers)
    first = max(0, n_all + 1 - n_layers)  # the output is one of the n_layers
    compute = size.compute_bytes(config, n_devices=1) + (size.staging_bytes(config) if first else 0)
    weights = sum(size.layers[first:]) + size.output
    return [n_bytes / MIB for n_bytes in (weights, sum(size.cache_bytes(config)[first:]), compute)]


@pytest.mark.parametrize("n_layers", [1, 15, 99])
@pytest.mark.parametrize("make", [large_vocabulary, many_layers, tiny_qwen35, sliding_window])
def test_weights_cache_and_compute_buffers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gpu: str, make: Callable[[Path], Path], n_layers: int
) -> None:
    path = make(tmp_path / "model.gguf")
    config = ContextConfig(4000, 1, 1)
    weights, cache, compute = allocated(path, n_layers, config, caplog, gpu)
    sizes = expected(model_size(ModelConfig(path)), n_layers, config)
    assert [weights, cache] == pytest.approx(sizes[:2], abs=LOGGED)
    # Not everything that counts is needed at the same time: two masks only in layers.
    assert 0.5 * sizes[2] <= compute <= sizes[2]


@pytest.mark.parametrize(
    "options",
    [
        {"n_outputs_max": 512},
        {"flash_attn": "off"},
        {"n_ubatch": 64},
        {"n_batch": 2048, "n_ubatch": 2048},
        {"type_k": "q8_0", "type_v": "q8_0"},
        {"n_branches": 3},
    ],
)
def test_options_of_the_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gpu: str, options: dict[str, Any]
) -> None:
    path = large_vocabulary(tmp_path / "model.gguf")
    config = ContextConfig(2000, 1, 1, **options)
    weights, cache, compute = allocated(path, 99, config, caplog, gpu)
    sizes = expected(model_size(ModelConfig(path)), 99, config)
    assert [weights, cache] == pytest.approx(sizes[:2], abs=LOGGED)
    assert 0.7 * sizes[2] <= compute <= sizes[2]


@pytest.mark.parametrize("n_layers", [1, 15, 99])
def test_the_demo_pair(demo_pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture, gpu: str, n_layers: int) -> None:
    for path in demo_pair:
        config = ContextConfig(1024, 1, 1)
        weights, cache, compute = allocated(path, n_layers, config, caplog, gpu)
        sizes = expected(model_size(ModelConfig(path)), n_layers, config)
        assert [weights, cache] == pytest.approx(sizes[:2], rel=0.01, abs=LOGGED)
        assert 0.5 * sizes[2] <= compute <= sizes[2]


def test_free_memory_is_less_by_what_is_allocated_or_not_reported(tmp_path: Path, gpu: str) -> None:
    path = large_vocabulary(tmp_path / "model.gguf")
    with closing(Model(ModelConfig(path, n_gpu_layers=0))):
        before = gpus()[0].memory
    with closing(Model(ModelConfig(path, n_gpu_layers=99))):
        free, total = gpus()[0].memory
    assert free == total or free <= before[0] - sum(model_size(ModelConfig(path)).layers)

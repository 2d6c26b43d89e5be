"""What llama.cpp allocates on a device, against the estimates from the file's header, and what does not fit."""

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
from duo.llama.model import Model, model_size
from tests.command import Run, duo
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_qwen35

MIB = 1 << 20


def large_vocabulary(path: Path) -> Path:
    return tiny_llama(path, padding=20_000)


MODELS: dict[str, Callable[[Path], Path]] = {
    "large vocabulary": large_vocabulary,
    "many layers": lambda path: tiny_hybrid(path, n_layer=20),
    "linear attention": tiny_qwen35,
    "sliding window": lambda path: tiny_gemma(path, window=16),
}


def assert_estimated(
    path: Path,
    n_layers: int,
    config: ContextConfig,
    log: pytest.LogCaptureFixture,
    gpu: str,
    *,
    rel: float = 0.0,
    least: float = 0.5,
) -> None:
    """What is allocated on the device is what was estimated; of the compute buffers, at least this part."""
    log.clear()
    log.set_level(logging.INFO, "duo.llama")
    with closing(Model(ModelConfig(path, n_gpu_layers=n_layers))) as model, closing(Context(model, config)):
        lines = "\n".join(log.messages)
    weights, cache, compute = (
        sum(map(float, re.findall(rf"{gpu} {name} buffer size = *([\d.]+) MiB", lines)))
        for name in ("model", "KV", "compute")
    )
    size = model_size(ModelConfig(path))
    first = max(0, len(size.layers) + 1 - n_layers)  # the output is one of the n_layers
    in_all = size.compute_bytes(config, n_devices=1) + (size.staging_bytes(config) if first else 0)
    # The log has two decimals.
    assert weights == pytest.approx((sum(size.layers[first:]) + size.output) / MIB, rel=rel, abs=0.01)
    assert cache == pytest.approx(sum(size.cache_bytes(config)[first:]) / MIB, rel=rel, abs=0.01)
    # Not everything that counts is needed at the same time: two masks only in layers.
    assert least * in_all / MIB <= compute <= in_all / MIB


@pytest.mark.parametrize("n_layers", [1, 15, 99])
@pytest.mark.parametrize("name", MODELS)
def test_weights_cache_and_compute_buffers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gpu: str, name: str, n_layers: int
) -> None:
    assert_estimated(MODELS[name](tmp_path / "model.gguf"), n_layers, ContextConfig(4000, 1, 1), caplog, gpu)


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
    config = ContextConfig(2000, 1, 1, **options)
    assert_estimated(large_vocabulary(tmp_path / "model.gguf"), 99, config, caplog, gpu, least=0.7)


@pytest.mark.parametrize("n_layers", [1, 15, 99])
def test_the_demo_pair(demo_pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture, gpu: str, n_layers: int) -> None:
    for path in demo_pair:
        assert_estimated(path, n_layers, ContextConfig(1024, 1, 1), caplog, gpu, rel=0.01)


def test_free_memory_is_less_by_what_is_allocated_or_not_reported(tmp_path: Path, gpu: str) -> None:
    path = large_vocabulary(tmp_path / "model.gguf")
    with closing(Model(ModelConfig(path, n_gpu_layers=0))):
        before = gpus()[0].memory
    with closing(Model(ModelConfig(path, n_gpu_layers=99))):
        free, total = gpus()[0].memory
    assert free == total or free <= before[0] - sum(model_size(ModelConfig(path)).layers)


# Contexts that do not fit are refused before llama.cpp ends the process or the driver takes more

CELL = 2 * 30 * 192 * 2  # bytes of the demo target's KV cache for each token
FREE = 2**31  # bytes of each device, as code for `before` says
TOO_MANY = FREE // CELL + 1000  # tokens whose cache is larger
BEFORE = f"from duo.llama.devices import Device; Device.memory = property(lambda self: ({FREE}, 2**40))"


def run(target: Path, n_ctx: int, *more: str) -> Run:
    options = ("-n", "2", "-t", "1", *more, "-c", str(n_ctx), "--no-warmup")
    return duo("-m", target, "-p", "a", *options, before=BEFORE)


def test_a_context_larger_than_the_device_is_refused_and_what_is_said_to_fit_does(
    demo_pair: tuple[Path, Path], gpu: str
) -> None:
    refused = run(demo_pair[0], TOO_MANY, "-ngl", "99")
    assert refused.status == 1, refused.stderr
    (error,) = (line for line in refused.stderr.splitlines() if "error" in line)
    fits = re.search(r"at most (\d+) tokens fit \(-c\); fewer layers there \(-ngl\)", error)
    assert fits is not None, error
    assert gpu in error
    assert 0 < int(fits[1]) < TOO_MANY
    fitting = run(demo_pair[0], int(fits[1]), "-ngl", "99")
    assert fitting.status == 0, fitting.stderr


def test_automatic_layers_leave_the_device_to_what_fits(demo_pair: tuple[Path, Path], gpu: str) -> None:
    automatic = run(demo_pair[0], TOO_MANY)
    assert automatic.status == 0, automatic.stderr
    assert re.search(r"target [12]?\d of 31", automatic.stderr), automatic.stderr

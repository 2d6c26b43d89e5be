"""Sizes of published models against what llama.cpp logged when others loaded them. In MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.llama.model_size import ModelSize, model_size
from tests.published import COMMAND_R, LLAMA_70B, QWEN_32B, Shape, header

MIB = 1 << 20
LOGGED = 0.006  # precision of the log, and of a binary fraction


def size_of(path: Path, shape: Shape, quantization: str) -> ModelSize:
    return model_size(ModelConfig(header(path / "model.gguf", shape, quantization)))


@pytest.mark.parametrize(
    ("shape", "quantization", "layers", "on_devices", "on_host"),
    [
        # README of mirabarukaso/local-llm-webui: 33 repeating layers on a card of 24 GB.
        (LLAMA_70B, "Q4_K_M", [range(47, 80)], [16240.69], 24302.42),
        # ollama/ollama#11986: split between two cards.
        (LLAMA_70B, "Q8_0", [range(28), range(28, 81)], [24277.75, 46151.91], 1064.62),
        # ggml-org/llama.cpp#6122: cards of 12 and 24 GB; the token embedding is also the output, and in memory twice.
        (COMMAND_R, "Q4_K_S", [range(12), range(12, 41)], [5434.38, 13989.53], 0),
    ],
)
def test_weights(
    tmp_path: Path, shape: Shape, quantization: str, layers: list[range], on_devices: list[float], on_host: float
) -> None:
    size = size_of(tmp_path, shape, quantization)
    weights = [*size.layers, size.output]
    assert [sum(weights[i] for i in part) / MIB for part in layers] == pytest.approx(on_devices, abs=LOGGED)
    assert size.n_bytes / MIB == pytest.approx(sum(on_devices) + on_host, abs=3 * LOGGED)


def test_caches(tmp_path: Path) -> None:
    found = size_of(tmp_path, COMMAND_R, "Q8_0").cache_bytes(ContextConfig(4096, 1, 1))  # ggml-org/llama.cpp#6122
    assert [sum(found[:12]), sum(found[12:40])] == [1536 * MIB, 3584 * MIB]


@pytest.mark.parametrize(
    ("shape", "config", "n_devices", "compute"),
    [
        # Each with logits of all tokens, unlike duo. ggml-org/llama.cpp#11861:
        (QWEN_32B, ContextConfig(16384, 1, 1, n_batch=512, n_outputs_max=512), 1, 307.00),
        # ggml-org/llama.cpp#6122: the first of two cards, without flash attention, "n_copies=4".
        (COMMAND_R, ContextConfig(4096, 1, 1, n_outputs_max=512, flash_attn="off"), 2, 672.01),
    ],
)
def test_compute_buffers_are_estimated_from_above(
    tmp_path: Path, shape: Shape, config: ContextConfig, n_devices: int, compute: float
) -> None:
    # By up to a quarter: tensors that llama.cpp places in memory that is free again count in full.
    assert compute <= size_of(tmp_path, shape, "Q4_K_M").compute_bytes(config, n_devices) / MIB <= 1.25 * compute

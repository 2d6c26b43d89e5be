"""Sizes and placements of published models against what llama.cpp logged when others loaded them. In MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.llama.model_size import ModelSize, model_size
from duo.spec.placement import MARGIN, Footprint, Room, place
from tests.published import COMMAND_R, LLAMA_1B, LLAMA_70B, QWEN_32B, QWEN_500M, Shape, header

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


@pytest.mark.parametrize(
    ("shape", "config", "layers", "cache"),
    [
        (COMMAND_R, ContextConfig(4096, 1, 1), [range(12), range(12, 40)], [1536, 3584]),  # ggml-org/llama.cpp#6122
    ],
)
def test_caches(tmp_path: Path, shape: Shape, config: ContextConfig, layers: list[range], cache: list[int]) -> None:
    found = size_of(tmp_path, shape, "Q8_0").cache_bytes(config)
    assert [sum(found[i] for i in part) for part in layers] == [n * MIB for n in cache]


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


# Placements


def footprint(path: Path, shape: Shape, quantization: str, n_devices: int = 1) -> Footprint:
    size = size_of(path, shape, quantization)
    config = ContextConfig(8192, 1, 1)
    buffers = size.compute_bytes(config, n_devices), size.staging_bytes(config)
    return Footprint(size.layers, size.output, size.cache_bytes(config), *buffers)


def test_a_70b_beside_its_draft_on_12_gb(tmp_path: Path) -> None:
    target = footprint(tmp_path, LLAMA_70B, "Q4_K_M")
    draft = footprint(tmp_path, LLAMA_1B, "Q8_0")
    free = 11743  # of a card with 12 GB: ggml-org/llama.cpp#10109
    card = [Room("CUDA0", free * MIB)]
    placement = place(target, draft, card, card)
    assert placement.draft.n_gpu_layers == 17, "the draft completely"
    used = placement.target.used[0] + placement.draft.used[0]
    # README of mirabarukaso/local-llm-webui: 33 layers have 16240.69 MiB. The cache has 4 KiB per token and layer.
    layer = 16240.69 / 33 + 32
    room = free - MARGIN / MIB
    assert room - layer < used / MIB <= room, "no room for one more"
    # What the layers alone would fit, without margin and buffers: these cost three of them.
    most = (free - (placement.draft.used[0] + target.output) / MIB) / layer
    assert most - 4 < placement.target.n_gpu_layers - 1 <= most


def test_a_32b_and_its_draft_completely_on_twice_16_gb(tmp_path: Path) -> None:
    target = footprint(tmp_path, QWEN_32B, "Q4_K_M", n_devices=2)
    # lmstudio-ai/lmstudio-bug-tracker#1360 and ollama/ollama#11292: free on cards with 16 GB.
    cards = [Room("CUDA0", 15055 * MIB), Room("CUDA1", 15225 * MIB)]
    placement = place(target, footprint(tmp_path, QWEN_500M, "Q8_0", n_devices=2), cards, cards)
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (65, 25)
    # ggml-org/llama.cpp#11861 again, on both cards together; and the first card has room for the draft.
    buffers = 2 * target.overhead
    assert (sum(placement.target.used) - buffers) / MIB == pytest.approx(18508.35 + 4096 / 2, abs=0.01)
    for room, *used in zip(cards, placement.target.used, placement.draft.used, strict=True):
        assert sum(used) <= room.free_bytes - MARGIN

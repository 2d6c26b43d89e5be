"""Placements of published models on published cards, against what llama.cpp logged there. All sizes in MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.llama.model_size import model_size
from duo.spec.placement import MARGIN, Footprint, Room, place
from tests.published import LLAMA_1B, LLAMA_70B, QWEN_32B, QWEN_500M, Shape, header

MIB = 1 << 20
# Memory that llama.cpp reported as free before loading.
RTX_4070 = 11743  # 12 GB: ggml-org/llama.cpp#10109
RTX_5060_TI = 15055  # 16 GB: lmstudio-ai/lmstudio-bug-tracker#1360
RTX_4060_TI = 15225  # 16 GB: ollama/ollama#11292
RTX_3090 = 23274  # 24 GB: lmstudio-ai/lmstudio-bug-tracker#412


def footprint(
    path: Path, shape: Shape, quantization: str, n_ctx: int, n_devices: int = 1, flash_attn: str = "auto"
) -> Footprint:
    size = model_size(ModelConfig(header(path / "model.gguf", shape, quantization)))
    config = ContextConfig(n_ctx, 1, 1, flash_attn=flash_attn)
    buffers = size.compute_bytes(config, n_devices), size.staging_bytes(config)
    return Footprint(size.layers, size.output, size.cache_bytes(config), *buffers)


def rooms(*free: int) -> list[Room]:
    return [Room(f"CUDA{i}", size * MIB) for i, size in enumerate(free)]


def test_a_70b_beside_its_draft_on_12_gb(tmp_path: Path) -> None:
    target = footprint(tmp_path, LLAMA_70B, "Q4_K_M", 8192)
    draft = footprint(tmp_path, LLAMA_1B, "Q8_0", 8192)
    card = rooms(RTX_4070)
    placement = place(target, draft, card, card)
    assert placement.draft.n_gpu_layers == 17, "the draft completely"
    used = placement.target.used[0] + placement.draft.used[0]
    # README of mirabarukaso/local-llm-webui: 33 layers have 16240.69 MiB. The cache has 4 KiB per token and layer.
    layer = 16240.69 / 33 + 32
    room = RTX_4070 - MARGIN / MIB
    assert room - layer < used / MIB <= room, "no room for one more"
    # What the layers alone would fit, without margin and buffers: these cost three of them.
    most = (RTX_4070 - (placement.draft.used[0] + target.output) / MIB) / layer
    assert most - 4 < placement.target.n_gpu_layers - 1 <= most


def test_a_32b_and_its_draft_completely_on_24_gb(tmp_path: Path) -> None:
    target = footprint(tmp_path, QWEN_32B, "Q4_K_M", 8192)
    card = rooms(RTX_3090)
    placement = place(target, footprint(tmp_path, QWEN_500M, "Q8_0", 8192), card, card)
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (65, 25)


def test_a_32b_and_its_draft_completely_on_twice_16_gb(tmp_path: Path) -> None:
    target = footprint(tmp_path, QWEN_32B, "Q4_K_M", 8192, n_devices=2)
    cards = rooms(RTX_5060_TI, RTX_4060_TI)
    placement = place(target, footprint(tmp_path, QWEN_500M, "Q8_0", 8192, n_devices=2), cards, cards)
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (65, 25)
    # ggml-org/llama.cpp#11861 again, on both cards together; and the first card has room for the draft.
    buffers = 2 * target.overhead
    assert (sum(placement.target.used) - buffers) / MIB == pytest.approx(18508.35 + 4096 / 2, abs=0.01)
    for room, *used in zip(cards, placement.target.used, placement.draft.used, strict=True):
        assert sum(used) <= room.free_bytes - MARGIN

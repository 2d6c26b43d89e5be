"""Whether a context fits the host and the devices, by what they report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import MemoryLimitError
from duo.llama import capacity
from duo.llama.capacity import check_memory, largest_cache
from duo.llama.devices import list_devices
from duo.llama.model import Model
from duo.llama.model_size import ModelSize

MIB = 1 << 20
# Four layers of 1 MiB; 1024 bytes of float16 cache for each token and layer.
SIZE = ModelSize(
    layers=(MIB,) * 4, output=MIB, largest=MIB, n_bytes=5 * MIB, cache_widths=((256, 256),) * 4, n_vocab=0, n_embd=64,
    n_head=2, n_ff=64, n_masks=1,
)  # fmt: skip


@dataclass
class FakeDevice:
    memory: tuple[int, int]
    name: str = "GPU0"
    pointer: int = 0


@dataclass
class FakeModel:
    """With all layers on `devices`, unless `n_offloaded` says otherwise."""

    devices: list[FakeDevice]
    n_offloaded: int = 4
    config: ModelConfig = field(default_factory=lambda: ModelConfig(Path("model.gguf")))
    size: ModelSize = SIZE
    n_vocab: int = 0
    can_roll_back: bool = False  # so that the size is used for the host, too

    @property
    def path(self) -> Path:
        return self.config.path


def check(model: FakeModel, n_ctx: int, n_ubatch: int = 1) -> None:
    check_memory(cast("Model", model), ContextConfig(n_ctx, 1, 1, n_ubatch=n_ubatch))


def on_devices(*memory: tuple[int, int], n_offloaded: int = 4, **config: str) -> FakeModel:
    devices = [FakeDevice(sizes, f"GPU{i}") for i, sizes in enumerate(memory)]
    return FakeModel(devices, n_offloaded, replace(ModelConfig(Path("model.gguf")), **config))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def large_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_can_hold", lambda *_: True)


def test_what_fits_is_said() -> None:
    with pytest.raises(MemoryLimitError) as raised:
        check(on_devices((5 * MIB, 100 * MIB)), 2048)
    assert str(raised.value) == (
        "model.gguf: a context of 2048 tokens needs 0.0 GiB on GPU0, and 0.0 GiB are free: at most 1024 tokens fit "
        "(n_ctx); fewer layers there (n_gpu_layers) leave more room"
    )


def test_only_the_layers_on_the_device_count() -> None:
    check(on_devices((5 * MIB, 100 * MIB), n_offloaded=2), 2048)
    with pytest.raises(MemoryLimitError):
        check(on_devices((5 * MIB, 100 * MIB), n_offloaded=3), 2048)


def test_a_driver_that_does_not_report_what_is_used() -> None:
    check(on_devices((10 * MIB, 10 * MIB)), 1024)
    with pytest.raises(MemoryLimitError):
        check(on_devices((8 * MIB, 8 * MIB)), 1024)  # of which the weights take 5


def test_a_cache_larger_than_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_can_hold", lambda _device, _kind, _width, n_rows: n_rows <= 1300)
    check(on_devices((1 << 40, 1 << 41)), 1280)
    with pytest.raises(MemoryLimitError, match=r"2 MiB for the K and V .* of GPU0 is smaller: at most 1280 tokens"):
        check(on_devices((1 << 40, 1 << 41)), 2048)
    check(on_devices((1 << 40, 1 << 41), split_mode="tensor"), 2048)  # each device holds a part of the layer


def test_llama_cpp_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert largest_cache(list_devices()[-1], [(256, 256)], ContextConfig(1 << 20, 1, 1)) == 1 << 20

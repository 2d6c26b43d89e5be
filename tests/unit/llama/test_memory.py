"""Whether a context fits the host and the devices, by what they report."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import MemoryLimitError
from duo.llama.memory import check_memory
from duo.llama.model_size import ModelSize

MIB = 1 << 20
# Four layers of 1 MiB; 1024 bytes of float16 cache for each token and layer.
NO_HEAD: Any = None
SIZE = ModelSize((MIB,) * 4, MIB, MIB, 5 * MIB, ((256, 256),) * 4, NO_HEAD)


def check(free: int, total: int, n_ctx: int, n_offloaded: int = 4) -> None:
    device, config = SimpleNamespace(name="GPU0", memory=(free * MIB, total * MIB)), ModelConfig(Path("model.gguf"))
    model: Any = SimpleNamespace(
        devices=[device], n_offloaded=n_offloaded, config=config, size=SIZE, n_vocab=0, path=config.path
    )
    check_memory(model, ContextConfig(n_ctx, 1, 1, n_ubatch=1))


def test_what_fits_is_said() -> None:
    with pytest.raises(MemoryLimitError, match=r"iB are available: use a smaller n_ctx"):
        check(0, 0, 2**40, n_offloaded=0)
    with pytest.raises(MemoryLimitError) as raised:
        check(5, 100, 2048)
    assert str(raised.value) == (
        "model.gguf: a context of 2048 tokens needs 8 MiB on GPU0, and 5 MiB are free: at most 1024 tokens fit "
        "(n_ctx); fewer layers there (n_gpu_layers) leave more room"
    )


@pytest.mark.parametrize(
    ("free", "total", "n_ctx", "n_offloaded", "fits"),
    [
        (5, 100, 2048, 2, True),
        (5, 100, 2048, 3, False),
        (10, 10, 1024, 4, True),  # a driver that does not report what is used
        (8, 8, 1024, 4, False),  # of which the weights take 5
        (0, 0, 1024, 4, True),  # nor anything else
    ],
)
def test_only_the_layers_on_the_device_count(free: int, total: int, n_ctx: int, n_offloaded: int, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(MemoryLimitError):
        check(free, total, n_ctx, n_offloaded)

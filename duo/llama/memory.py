"""Memory: what is available, what this process has used, and whether a context fits."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from duo.errors import MemoryLimitError
from duo.llama.control_groups import memory_left

if TYPE_CHECKING:
    from duo.config import ContextConfig
    from duo.llama.model import Model

_CELLS = 256  # the numbers of tokens that are suggested are multiples of this, as llama.cpp's numbers of cells


def available_bytes() -> int:
    """Memory available without swapping, in bytes, within the limits of a container or service."""
    free: int = psutil.virtual_memory().available
    left = memory_left()
    return free if left is None else min(free, int(left.value))


def peak_bytes() -> int:
    """Peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim() -> None:
    """Return freed memory to the system, with glibc: it keeps an arena per thread."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def uses_host_memory() -> bool:
    """Whether devices may take the host's memory when their own is full, because the user said so."""
    return any(os.environ.get(name) for name in ("GGML_VK_ALLOW_SYSMEM_FALLBACK", "GGML_CUDA_ENABLE_UNIFIED_MEMORY"))


def check_memory(model: Model, config: ContextConfig) -> None:
    """Raise MemoryLimitError if cache and buffers do not fit: the system, or a driver, would kill the process later."""
    caches = model.size.cache_bytes(config)
    n_host = len(caches) - model.n_offloaded
    on_host, on_devices = sum(caches[:n_host]), sum(caches[n_host:])
    logits = config.n_reserved * model.n_vocab * 4
    attention = 2 * min(config.n_ctx, config.n_ubatch, config.n_batch) * config.n_ctx  # the mask, for a batch
    attention += model.size.scores_bytes(config) if config.flash_attn == "off" else 0
    need = f"{model.path.name}: a context of {config.n_ctx} tokens needs"

    needed, available = logits + on_host + (attention if on_host else 0), available_bytes()
    if needed > available:
        raise MemoryLimitError(
            f"{need} {needed / 2**30:.1f} GiB for its cache and buffers, and {available / 2**30:.1f} GiB are "
            "available: use a smaller n_ctx or n_ubatch, or q8_0 for type_k and type_v"
        )

    free, total = map(sum, zip((0, 0), *(device.memory for device in model.devices), strict=True))
    if not total or uses_host_memory():  # 0: not reported
        return
    if free == total:  # a driver that does not report what is used: at least the weights are
        free -= model.size.offloaded_bytes(model.n_offloaded)
    needed = logits + on_devices + attention
    if needed > free:
        fits = int(max(0, free - logits) / (needed - logits) * config.n_ctx) // _CELLS * _CELLS
        most = f"at most {fits} tokens fit (n_ctx)" if fits else "no context fits"
        raise MemoryLimitError(
            f"{need} {needed / 2**30:.1f} GiB on {', '.join(device.name for device in model.devices)}, and "
            f"{max(0, free) / 2**30:.1f} GiB are free: {most}; fewer layers there "
            f"({model.config.prefix}n_gpu_layers) leave more room"
        )

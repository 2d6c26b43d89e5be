"""Memory: what is available, what this process has used, and whether a context fits."""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from duo.errors import MemoryLimitError, ModelError
from duo.llama.build import CPU
from duo.llama.control_groups import memory_left

if TYPE_CHECKING:
    from duo.config import ContextConfig
    from duo.llama.model import Model

_SHORTAGE = re.compile("(cannot|could not|failed to|unable to) allocate|insufficient memory|out of memory|bad_alloc"
                       "|mem_buffer != NULL", re.IGNORECASE)  # fmt: skip
_FLOATS = ("f32", "f16", "bf16")  # other types of the V cache need flash attention
_MAX_SCORES = 1 << 30  # bytes
_CELLS = 256  # the numbers of tokens that are suggested are multiples of this, as llama.cpp's numbers of cells


def available_bytes() -> int:
    """Memory available without swapping, in bytes, within the limits of a container or service and of `ulimit -v`."""
    free: int = psutil.virtual_memory().available
    if (left := memory_left()) is not None:
        free = min(free, int(left.value))
    return int(max(0, min(free, _most_bytes() - psutil.Process().memory_info().vms)))


def _most_bytes() -> float:
    """What `ulimit -v` lets this process have in all."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if most == resource.RLIM_INFINITY else most


def of_size(n_bytes: float) -> str:
    """This many bytes, for people."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


def shortage(log: str, needs: str) -> str:
    """That memory is lacking, and what was needed, if llama.cpp's `log` says that; else empty."""
    line = re.sub(".*error loading model[^:]*: ", "", next(filter(_SHORTAGE.search, log.splitlines()), ""))
    limit = " within the limit of this process" if _most_bytes() < math.inf else ""
    free = f"{of_size(available_bytes())} of this machine's memory are available{limit}"
    return line and f"out of memory: {needs}, and {free} ({line})"


def failure(name: object, log: str, needs: str, otherwise: str) -> ModelError:
    """The error of `name`, a file: see shortage(); or else `otherwise`."""
    short = shortage(log, needs)
    return MemoryLimitError(f"{name}: {short}") if short else ModelError(f"{name}: {otherwise}")


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
            f"{need} {of_size(needed)} for its cache and buffers, and {of_size(available)} are available: "
            "use a smaller n_ctx or n_ubatch, or q8_0 for type_k and type_v"
        )

    free, total = map(sum, zip((0, 0), *(device.memory for device in model.devices), strict=True))
    if not total or uses_host_memory():  # 0: not reported
        return
    needed = logits + on_devices + attention
    if needed > free:
        fits = int(max(0, free - logits) / (needed - logits) * config.n_ctx) // _CELLS * _CELLS
        most = f"at most {fits} tokens fit (n_ctx)" if fits else "no context fits"
        raise MemoryLimitError(
            f"{need} {of_size(needed)} on {', '.join(device.name for device in model.devices)}, and "
            f"{of_size(max(0, free))} are free: {most}; fewer layers there "
            f"({model.config.prefix}n_gpu_layers) leave more room"
        )


def flash_attention(model: Model, config: ContextConfig) -> str:
    """What `flash_attn` is for this context: off if it is auto on the CPU, unless the scores need much memory.

    ggml's kernel for the CPU takes each row of a batch by itself (ggml-cpu/ops.cpp, flash_attn_ext_f16_one_chunk): with
    1,000 tokens in the cache, eight rows take two to three times as long as by matrix products. Long prompts are read
    faster by it (benchmarks/NOTES.md). `exact` needs it.
    """
    room = available_bytes() - sum(model.size.cache_bytes(config))  # a context that fits with it must not be refused
    fits = model.size.scores_bytes(config) <= min(_MAX_SCORES, room // 2)
    is_off = config.flash_attn == "auto" and model.places == {CPU} and config.type_v in _FLOATS and fits
    return "on" if config.exact else "off" if is_off else config.flash_attn

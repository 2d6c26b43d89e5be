"""Capacity: whether a context fits the memory of the host and of the devices that hold layers."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable

from duo.config import ContextConfig
from duo.errors import MemoryLimitError
from duo.llama import library
from duo.llama.devices import Device, ggml
from duo.llama.memory import available_bytes
from duo.llama.model import Model
from duo.llama.model_size import CELLS, cache_type, n_cells

_BY_LAYER = ("none", "layer", "row")  # split modes in which the KV cache of a layer is on one device
_ARENA = 1 << 16  # bytes, for the headers of a few tensors
_I64, _F32 = 27, 0  # ggml.h, enum ggml_type


def check_memory(model: Model, config: ContextConfig) -> None:
    """Raise MemoryLimitError if the cache and what is certain of the buffers do not fit.

    Linux overcommits and kills the process later, drivers may do the same, and llama.cpp ends the process where a
    cache is larger than the largest buffer of its device.
    """
    caches = model.size.cache_bytes(config)
    n_host = len(caches) - model.n_offloaded
    _check_host(model, config, sum(caches[:n_host]))
    if model.devices:
        _check_buffers(model, config)
        _check_devices(model, config, sum(caches[n_host:]))


def _check_host(model: Model, config: ContextConfig, cache: int) -> None:
    mask = _mask_bytes(config) if cache else 0
    needed = cache + mask + config.n_outputs_max * model.n_vocab * 4
    available = available_bytes()
    if available is not None and needed > available:
        raise MemoryLimitError(
            f"{model.path.name}: a context of {config.n_ctx} tokens needs {needed / 2**30:.1f} GiB for its cache and "
            f"buffers, and {available / 2**30:.1f} GiB are available: use a smaller n_ctx"
            + (" or n_ubatch" if mask > cache else ", or q8_0 for type_k and type_v")
        )


def _mask_bytes(config: ContextConfig) -> int:
    """The attention mask of a batch, in float16: with the logits, all that is certain of the compute buffers."""
    return 2 * min(config.n_ctx, config.n_ubatch, config.n_batch) * config.n_ctx


def uses_host_memory() -> bool:
    """Whether devices may take the host's memory when their own is full, because the user said so."""
    return any(os.environ.get(name) for name in ("GGML_VK_ALLOW_SYSMEM_FALLBACK", "GGML_CUDA_ENABLE_UNIFIED_MEMORY"))


def _check_devices(model: Model, config: ContextConfig, cache: int) -> None:
    """Check the memory of all devices of the model together: llama.cpp decides which layers are on which."""
    if uses_host_memory():
        return
    memory = [device.memory for device in model.devices]
    free, total = (sum(sizes) for sizes in zip(*memory, strict=True))
    if not total:
        return  # not reported
    if free == total:  # a driver that does not report what is used: at least the weights are
        free -= model.size.offloaded_bytes(model.n_offloaded)
    logits = config.n_outputs_max * model.n_vocab * 4
    needed = cache + _mask_bytes(config) + logits
    if needed <= free:
        return
    per_token = (needed - logits) / config.n_ctx
    fits = int(max(0, free - logits) / per_token) // CELLS * CELLS
    raise _too_large(model, config, f"{needed / 2**30:.1f} GiB", f"{max(0, free) / 2**30:.1f} GiB are free", fits)


def _check_buffers(model: Model, config: ContextConfig) -> None:
    """Check the caches of single layers: a device may have more memory than one tensor can use."""
    if model.config.split_mode not in _BY_LAYER:
        return
    n_layer = len(model.size.cache_widths)
    widths = set(model.size.cache_widths[n_layer - model.n_offloaded :])
    for device in model.devices:
        most = largest_cache(device, widths, config)
        if most < n_cells(config):
            size = max(k * cache_type(config.type_k)[1] + v * cache_type(config.type_v)[1] for k, v in widths)
            needed = f"{n_cells(config) * size / 2**20:.0f} MiB for the K and V of a layer"
            raise _too_large(model, config, needed, f"the largest buffer of {device.name} is smaller", most)


def largest_cache(device: Device, widths: Iterable[tuple[int, int]], config: ContextConfig) -> int:
    """The most cells, up to those of `config`, of which the device can hold the K and the V cache of one layer.

    `widths`: values of one token in both, for each layer.
    """
    most = n_cells(config)
    for k, v in set(widths):
        for width, name in ((k, config.type_k), (v, config.type_v)):
            fits = functools.partial(_can_hold, device, cache_type(name)[0], width)
            if width and not fits(most):
                most = _largest(fits, most)
    return most


def _too_large(model: Model, config: ContextConfig, needed: str, reason: str, fits: int) -> MemoryLimitError:
    names = ", ".join(device.name for device in model.devices)
    least = f"at most {fits} tokens fit (n_ctx)" if fits else "no context fits"
    return MemoryLimitError(
        f"{model.path.name}: a context of {config.n_ctx} tokens needs {needed} on {names}, and {reason}: {least}; "
        f"fewer layers there ({model.config.prefix}n_gpu_layers) leave more room"
    )


def _largest(fits: Callable[[int], bool], too_many: int) -> int:
    """The largest multiple of CELLS that `fits`, below `too_many`."""
    low, high = 0, too_many // CELLS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * CELLS) else (low, middle)
    return low * CELLS


class _ArenaParams(ctypes.Structure):
    """ggml.h, struct ggml_init_params."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


@functools.cache
def _ggml() -> ctypes.CDLL:
    """ggml's tensors, without data."""
    pointer, n = ctypes.c_void_p, ctypes.c_int64
    ggml()
    return library.bind(
        "ggml_",
        (
            ("init", pointer, _ArenaParams),
            ("free", None, pointer),
            ("new_tensor_1d", pointer, pointer, ctypes.c_int, n),
            ("new_tensor_2d", pointer, pointer, ctypes.c_int, n, n),
            ("set_rows", pointer, pointer, pointer, pointer, pointer),
            ("backend_dev_supports_op", ctypes.c_bool, pointer, pointer),
        ),
    )


def _can_hold(device: Device, kind: int, width: int, n_rows: int) -> bool:
    """Whether the device can write a row into a KV cache of `n_rows` rows of `width` values of ggml's type `kind`."""
    lib = _ggml()
    arena = lib.ggml_init(_ArenaParams(_ARENA, None, True))
    try:
        cache = lib.ggml_new_tensor_2d(arena, kind, width, n_rows)
        row = lib.ggml_new_tensor_2d(arena, _F32, width, 1)
        write = lib.ggml_set_rows(arena, cache, row, lib.ggml_new_tensor_1d(arena, _I64, 1))
        return bool(lib.ggml_backend_dev_supports_op(device.pointer, write))
    finally:
        lib.ggml_free(arena)

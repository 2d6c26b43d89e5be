"""The devices that this build of llama.cpp can compute on."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

from llama_cpp._ggml import libggml

from duo.llama import library

# ggml-backend.h, enum ggml_backend_dev_type
_KINDS = ("CPU", "GPU", "IGPU", "ACCEL", "META")


@dataclass(frozen=True, slots=True)
class Device:
    """One device; memory in bytes."""

    name: str
    description: str
    kind: str  # CPU, GPU, IGPU, ACCEL or META
    memory_free: int
    memory_total: int


@functools.cache
def _ggml() -> ctypes.CDLL:
    # ctypes takes ints for pointers unless told: these come from the same library that llama_cpp loaded.
    library.start()
    lib: ctypes.CDLL = libggml
    lib.ggml_backend_dev_count.restype = ctypes.c_size_t
    lib.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    lib.ggml_backend_dev_get.restype = ctypes.c_void_p
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
        getattr(lib, name).restype = ctypes.c_char_p
    lib.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    lib.ggml_backend_dev_type.restype = ctypes.c_int
    size = ctypes.POINTER(ctypes.c_size_t)
    lib.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size, size]
    lib.ggml_backend_dev_memory.restype = None
    return lib


def list_devices() -> list[Device]:
    """All devices, in llama.cpp's order."""
    return [_device(_ggml().ggml_backend_dev_get(i)) for i in range(_ggml().ggml_backend_dev_count())]


def supports_gpu() -> bool:
    """Whether there is a GPU that layers can be put on."""
    return any(device.kind in ("GPU", "IGPU") for device in list_devices())


def _device(pointer: int) -> Device:
    lib = _ggml()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    lib.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=lib.ggml_backend_dev_name(pointer).decode(),
        description=lib.ggml_backend_dev_description(pointer).decode(),
        kind=_KINDS[lib.ggml_backend_dev_type(pointer)],
        memory_free=free.value,
        memory_total=total.value,
    )

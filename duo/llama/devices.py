"""The devices that llama.cpp can use: those of this machine and those of RPC servers."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from duo.errors import UsageError
from duo.llama import library
from duo.llama.lifeline import lifeline

# ggml-backend.h, enum ggml_backend_dev_type
_KINDS = ("CPU", "GPU", "IGPU", "ACCEL", "META")
CPU = "CPU"
RPC = "RPC"  # the kind of all devices of RPC servers


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `kind` is CPU, GPU, IGPU, ACCEL, META or RPC."""

    name: str
    description: str  # of an RPC device: its server
    kind: str
    pointer: int

    @property
    def memory(self) -> tuple[int, int]:
        """Free and total memory in bytes. Calls the server of an RPC device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with lifeline if self.kind == RPC else nullcontext():
            ggml().ggml_backend_dev_memory(self.pointer, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


@functools.cache
def ggml() -> ctypes.CDLL:
    """ggml's device functions."""
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    sizes = ctypes.POINTER(size)
    functions = (
        ("reg_count", size),
        ("reg_get", pointer, size),
        ("dev_count", size),
        ("dev_get", pointer, size),
        ("dev_name", text, pointer),
        ("dev_description", text, pointer),
        ("dev_type", ctypes.c_int, pointer),
        ("dev_memory", None, pointer, sizes, sizes),
        ("dev_backend_reg", pointer, pointer),
        ("reg_by_name", pointer, text),
        ("reg_name", text, pointer),
        ("reg_get_proc_address", pointer, pointer, text),
        ("register", None, pointer),
    )
    return library.bind("ggml_backend_", functions)


def list_devices() -> list[Device]:
    """All devices in llama.cpp's order, including those of added RPC servers."""
    return [_device(ggml().ggml_backend_dev_get(i)) for i in range(ggml().ggml_backend_dev_count())]


def list_backends() -> list[str]:
    """llama.cpp's names for the back ends of this build: CPU, RPC, CUDA, ROCm, MTL (Metal), Vulkan …"""
    lib = ggml()
    return [
        lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(i)).decode() for i in range(lib.ggml_backend_reg_count())
    ]


def gpus() -> list[Device]:
    """This machine's GPUs that can hold layers: the discrete ones, or the integrated ones if there are no others."""
    devices = list_devices()
    own = [device for device in devices if device.kind == "GPU"]
    return own or [device for device in devices if device.kind == "IGPU"]


def find_devices(names: Sequence[str], parameter: str = "devices", *, cpu: bool = False) -> list[Device]:
    """The devices with these names; the CPU is one of them only with `cpu`.

    Raises UsageError for unknown names; `parameter` is what they were given as.
    """
    known = {device.name.lower(): device for device in list_devices() if cpu or device.kind != CPU}
    for name in names:
        if name.lower() not in known:
            available = ", ".join(device.name for device in known.values()) or "none besides the CPU"
            raise UsageError(f"{parameter}: unknown device {name} (available: {available})", parameter)
    return [known[name.lower()] for name in names]


def _device(pointer: int) -> Device:
    lib = ggml()
    kind = _KINDS[lib.ggml_backend_dev_type(pointer)]
    registry = lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(pointer)).decode()
    return Device(
        name=lib.ggml_backend_dev_name(pointer).decode(),
        description=lib.ggml_backend_dev_description(pointer).decode(),
        # An RPC device reports itself as a GPU, whatever it is.
        kind=RPC if registry == RPC else kind,
        pointer=pointer,
    )

"""The devices that llama.cpp can use: those of this machine and of RPC servers, and where a model's layers are.

RPC has no encryption and no authentication, and does not check its input. Use it in trusted networks only: every
client has full control over the server's process.
"""

import ctypes
import functools
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duo.config import ModelConfig, split_endpoint
from duo.errors import DeviceError, UsageError
from duo.llama import library
from duo.llama.build import CPU, GPU_BACKENDS, LIBRARIES
from duo.llama.lifeline import lifeline

# ggml-backend.h, enum ggml_backend_dev_type
_KINDS = ("CPU", "GPU", "IGPU", "ACCEL", "META")
RPC = "RPC"  # the kind of all devices of RPC servers
# ggml-rpc.cpp: a command, the size of what follows, 24 bytes of capabilities; the answer begins with the size of a
# version and more capabilities.
_HELLO = struct.pack("<BQ24x", 14, 24)
_SIZE, _PLAUSIBLE = struct.Struct("<Q"), range(3, 65)
_PROBE_S = 3.0
_CONNECT_S = 1.0


holders: weakref.WeakSet[Any] = weakref.WeakSet()  # the models that are loaded


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `kind` is CPU, GPU, IGPU, ACCEL, META or RPC."""

    name: str
    description: str  # of an RPC device: its server
    kind: str
    pointer: int

    @property
    def memory(self) -> tuple[int, int]:
        """Free and total memory in bytes, less what loaded models hold if the device reports all of it as free."""
        free, total = self.reported
        return free - min(free, sum(model.held_on(self) for model in holders)) if free == total else free, total

    @property
    def reported(self) -> tuple[int, int]:
        """Free and total memory in bytes. Calls the server of an RPC device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with lifeline if self.kind == RPC else nullcontext():
            ggml().ggml_backend_dev_memory(self.pointer, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


@functools.cache
def ggml() -> ctypes.CDLL:
    """ggml's device functions."""
    return library.bind(
        "ggml_backend_", reg_count="z", reg_get="pz", reg_name="sp", reg_by_name="ps", reg_get_proc_address="pps",
        dev_count="z", dev_get="pz", dev_name="sp", dev_description="sp", dev_type="ip", dev_memory="vppp",
        dev_backend_reg="pp", register="vp", dev_buffer_type="pp", buft_name="sp", cpu_buffer_type="p",
    )  # fmt: skip


def list_devices() -> list[Device]:
    """All devices in llama.cpp's order, including those of added RPC servers."""
    lib, found = ggml(), []
    for pointer in map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count())):
        name, description = lib.ggml_backend_dev_name(pointer), lib.ggml_backend_dev_description(pointer)
        # An RPC device reports itself as a GPU, whatever it is.
        is_rpc = lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(pointer)) == RPC.encode()
        kind = RPC if is_rpc else _KINDS[lib.ggml_backend_dev_type(pointer)]
        found.append(Device(name.decode(), description.decode(), kind, pointer))
    return found


def list_backends() -> list[str]:
    """llama.cpp's names for the back ends of this build: CPU, RPC, CUDA, ROCm, MTL (Metal), Vulkan …"""
    lib = ggml()
    registries = map(lib.ggml_backend_reg_get, range(lib.ggml_backend_reg_count()))
    return [lib.ggml_backend_reg_name(registry).decode() for registry in registries]


def built_gpu_backends() -> list[str]:
    """The GPU back ends of this llama.cpp, also those that could not start: Vulkan without a driver, for example."""
    started, folder = list_backends(), Path(ggml()._name).parent
    return [
        name
        for name in GPU_BACKENDS
        if name in started or any(folder.glob(f"libggml-{LIBRARIES.get(name, name.lower())}.*"))
    ]


def gpus() -> list[Device]:
    """This machine's GPUs that can hold layers: the discrete ones, or the integrated ones if there are no others."""
    devices = list_devices()
    own = [device for device in devices if device.kind == "GPU"]
    return own or [device for device in devices if device.kind == "IGPU"]


def find_devices(names: Sequence[str], parameter: str = "devices", *, cpu: bool = False) -> list[Device]:
    """The devices of these names, given as `parameter`; the CPU only with `cpu`. Raises UsageError for unknown ones."""
    known = {device.name.lower(): device for device in list_devices() if cpu or device.kind != CPU}
    for name in names:
        if name.lower() not in known:
            available = ", ".join(device.name for device in known.values()) or "none besides the CPU"
            raise UsageError(f"{parameter}: unknown device {name} (available: {available})", parameter)
    return [known[name.lower()] for name in names]


# RPC


def refuses(address: str, port: int) -> bool:
    """Whether nothing accepts connections there."""
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except OSError:
        return True
    return False


def add_server(server: str, timeout_s: float) -> list[Device]:
    """The devices of `server` (host:port); silent for `timeout_s`, it ends the process. Raises DeviceError."""

    def served() -> list[Device]:
        return [device for device in list_devices() if device.kind == RPC and device.description == server]

    if not served():
        function = _function(b"ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
        _probe(server, min(_PROBE_S, timeout_s))
        lifeline.watch(server, timeout_s)
        with lifeline:
            registry = function(server.encode())
        if not registry:
            raise DeviceError(f"the RPC server {server} has no devices")
        ggml().ggml_backend_register(registry)
    return served()


def _probe(server: str, timeout_s: float) -> None:
    """Ask a server for its version: without one llama.cpp would abort or block forever. Raises DeviceError."""
    answer = b""
    try:
        host, port = split_endpoint(server)
        # IPv4 only, like llama.cpp.
        with socket.create_connection((socket.gethostbyname(host), port), timeout_s) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(_SIZE.size, socket.MSG_WAITALL)
    except TimeoutError:
        raise DeviceError(
            f"the RPC server {server} does not answer: it hangs, has another client (it serves one at a time), is not "
            "an RPC server, or a firewall drops the packets"
        ) from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "invalid host name"
        raise DeviceError(f"the RPC server {server} cannot be reached: {reason}") from None
    if len(answer) < _SIZE.size or _SIZE.unpack(answer)[0] not in _PLAUSIBLE:
        raise DeviceError(f"{server} is not an RPC server of llama.cpp, or has another version")


def serve(host: str, port: int, devices: Sequence[Device], n_threads: int, cache: str | None = None) -> None:
    """Serve devices at an IPv4 address forever; `cache`: a directory for large tensors. Raises DeviceError."""
    text, size = ctypes.c_char_p, ctypes.c_size_t
    function = _function(b"ggml_backend_rpc_start_server", None, text, text, size, size, ctypes.c_void_p)
    pointers = (ctypes.c_void_p * len(devices))(*(device.pointer for device in devices))
    function(f"{host}:{port}".encode(), cache and cache.encode(), n_threads, len(devices), pointers)


def _function(name: bytes, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of the RPC back end, which may be a separate library. Raises DeviceError if there is none."""
    registry = ggml().ggml_backend_reg_by_name(RPC.encode())
    address = ggml().ggml_backend_reg_get_proc_address(registry, name) if registry else None
    if not address:
        raise DeviceError("this build of llama.cpp has no RPC")
    return ctypes.CFUNCTYPE(result, *arguments)(address)


# Offloading


def devices_for(config: ModelConfig) -> list[Device]:
    """The devices for layers of this model, RPC first; empty: all stay on the CPU. Raises DeviceError or UsageError."""
    devices = [device for server in config.rpc_servers for device in add_server(server, config.rpc_timeout_s)]
    if config.devices is not None:
        devices = find_devices(config.devices, f"{config.prefix}devices")
    elif config.uses_gpus:
        devices += gpus()
    if not config.n_gpu_layers or not devices:
        return []
    if config.split_mode != "none":
        return devices
    if config.main_gpu >= len(devices):
        raise UsageError(f"main_gpu: the last of the {len(devices)} devices is {len(devices) - 1}", "main_gpu")
    return [devices[config.main_gpu]]

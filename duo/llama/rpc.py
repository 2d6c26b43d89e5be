"""llama.cpp's RPC: use the devices of other machines, and serve those of this one.

The protocol has no encryption and no authentication, and does not check its input. Use it in trusted networks only:
every client has full control over the server's process.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from duo.errors import DeviceError
from duo.llama import library
from duo.llama.connections import split_endpoint
from duo.llama.devices import CPU, RPC, Device, find_devices, ggml, gpus, list_devices
from duo.llama.lifeline import lifeline

# ggml-rpc.cpp: a command, the size of what follows, 24 bytes of capabilities; the answer begins with the version.
_HELLO = struct.pack("<BQ24x", 14, 24)
_SIZE = struct.Struct("<Q")
_PLAUSIBLE = range(3, 65)  # bytes of a version and more capabilities
_PROBE_S = 3.0


def add_server(server: str, timeout_s: float) -> list[Device]:
    """The devices that `server` (host:port) serves.

    From now on, the process ends if a call to the server is silent for `timeout_s` seconds: see duo.llama.lifeline.
    Raises DeviceError if there is no RPC server at this address, or this build has no RPC.
    """
    if not _served(server):
        function = _function(b"ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
        probe(server, min(_PROBE_S, timeout_s))
        lifeline.watch(server, timeout_s)
        with lifeline:
            registry = function(server.encode())
        if not registry:
            raise DeviceError(f"the RPC server {server} has no devices")
        ggml().ggml_backend_register(registry)
    return _served(server)


def probe(server: str, timeout_s: float) -> None:
    """Ask a server for its version: without one llama.cpp would abort or block forever. Raises DeviceError."""
    try:
        host, port = split_endpoint(server)
        answer = b""
        # IPv4 only, like llama.cpp.
        with socket.create_connection((socket.gethostbyname(host), port), timeout_s) as connection:
            connection.sendall(_HELLO)
            while len(answer) < _SIZE.size and (more := connection.recv(_SIZE.size - len(answer))):
                answer += more
    except TimeoutError:
        raise DeviceError(
            f"the RPC server {server} does not answer: it hangs, has another client (it serves one at a time), is not "
            "an RPC server, or a firewall drops the packets"
        ) from None
    except UnicodeError:
        raise DeviceError(f"the RPC server {server} cannot be reached: invalid host name") from None
    except OSError as error:
        raise DeviceError(f"the RPC server {server} cannot be reached: {error.strerror or error}") from None
    if len(answer) < _SIZE.size or _SIZE.unpack(answer)[0] not in _PLAUSIBLE:
        raise DeviceError(f"{server} is not an RPC server of llama.cpp, or has another version")


def serve(host: str, port: int, devices: Sequence[Device], n_threads: int, cache: str | None = None) -> None:
    """Serve devices to one client after the other, forever; returns only on failure.

    `host` is an IPv4 address; `cache` a directory for large tensors. Raises DeviceError if this build has no RPC.
    """
    function = _function(
        b"ggml_backend_rpc_start_server",
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
    )
    pointers = (ctypes.c_void_p * len(devices))(*(device.pointer for device in devices))
    function(f"{host}:{port}".encode(), cache and cache.encode(), n_threads, len(devices), pointers)


def servable_devices(names: Sequence[str] | None) -> list[Device]:
    """The devices to serve: those named, by default all GPUs, or the CPU without one. Raises UsageError."""
    if names is not None:
        return find_devices(names, cpu=True)
    return gpus() or [device for device in list_devices() if device.kind == CPU]


def _served(server: str) -> list[Device]:
    return [device for device in list_devices() if device.kind == RPC and device.description == server]


def _function(name: bytes, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of the RPC back end, which may be a separate library. Raises DeviceError if there is none."""
    registry = ggml().ggml_backend_reg_by_name(RPC.encode()) if library.supports_rpc() else None
    address = ggml().ggml_backend_reg_get_proc_address(registry, name) if registry else None
    if not address:
        raise DeviceError("this build of llama.cpp has no RPC")
    return ctypes.CFUNCTYPE(result, *arguments)(address)

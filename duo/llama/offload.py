"""Offload: the devices that hold a model's layers."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp

from duo.config import SPLIT_MODES, ModelConfig
from duo.llama.devices import CPU, RPC, Device, find_devices, gpus
from duo.llama.rpc import add_server


def devices_for(config: ModelConfig) -> list[Device]:
    """The devices for layers of this model; empty: all stay on the CPU.

    RPC devices come first, as in llama.cpp: less data is transferred. Raises DeviceError for a server that does not
    answer, UsageError for an unknown device.
    """
    served = [device for server in config.rpc_servers for device in add_server(server, config.rpc_timeout_s)]
    named = find_devices(config.devices, f"{config.prefix}devices") if config.devices is not None else None
    if config.n_gpu_layers == 0:
        return []
    if named is not None:
        return named
    return served + gpus() if config.uses_gpus else served


def layer_devices(config: ModelConfig, devices: list[Device]) -> list[Device]:
    """Those of the model's `devices` that hold layers. Raises UsageError for a main_gpu that is none of them."""
    if config.split_mode != "none" or not devices:
        return devices
    if config.main_gpu >= len(devices):
        raise config.error("main_gpu", f": no device {config.main_gpu}: they are numbered from 0 to {len(devices) - 1}")
    return [devices[config.main_gpu]]


class Offload:
    """The placement of one model's layers, as llama.cpp's parameters."""

    def __init__(self, config: ModelConfig) -> None:
        """Raises what devices_for() raises."""
        self._config = config
        self._devices = devices_for(config)
        most = llama_cpp.llama_max_devices()
        if len(config.tensor_split) > most:
            raise config.error(
                "tensor_split", f" has {len(config.tensor_split)} parts: llama.cpp supports at most {most} devices"
            )
        self.devices = layer_devices(config, self._devices)
        self.is_remote = any(device.kind == RPC for device in self._devices)
        # Never NULL: that would be all devices, including those for the other model.
        self._pointers = (ctypes.c_void_p * (len(self._devices) + 1))(*(device.pointer for device in self._devices))
        self._shares = (ctypes.c_float * most)(*config.tensor_split)

    def fill(self, params: Any) -> None:
        """Set llama.cpp's model parameters. They point into this object, so it must outlive them."""
        params.n_gpu_layers = self._config.n_gpu_layers
        params.split_mode = SPLIT_MODES.index(self._config.split_mode)
        params.main_gpu = self._config.main_gpu
        params.devices = ctypes.addressof(self._pointers)
        if self._config.tensor_split:
            params.tensor_split = self._shares

    def n_layers(self, n_layer: int) -> int:
        """How many of the `n_layer` layers of a model are on devices; llama.cpp counts the output as one more."""
        wanted = self._config.n_gpu_layers
        return min(n_layer, wanted - 1 if wanted > 0 else n_layer) if self._devices else 0

    def places(self, n_layer: int) -> frozenset[str]:
        """Names of the devices, CPU included, that hold layers of a model with `n_layer` layers."""
        on_cpu = not self._devices or 0 <= self._config.n_gpu_layers <= n_layer
        return frozenset([*(device.name for device in self.devices), *([CPU] if on_cpu else [])])

"""The profile of a pair: what earlier runs learned with the same models, devices and options."""

from __future__ import annotations

from collections.abc import Sequence

from duo.config import EngineConfig, ModelConfig
from duo.engine.cores import usable_cores
from duo.llama.devices import list_backends, list_devices
from duo.llama.library import system_info
from duo.llama.versions import versions
from duo.models.profiles import Profile


def find_profile(config: EngineConfig, models: Sequence[ModelConfig]) -> Profile:
    """The profile for everything that affects the cost of a decode. Raises UsageError without a config directory."""
    threads = (config.n_threads, config.draft_n_threads, config.cpu_range, config.draft_cpu_range)
    return Profile(
        {
            "models": [
                {
                    "path": str(model.path.resolve()),
                    "bytes": sum(part.stat().st_size for part in model.shards),
                    "modified_ns": [part.stat().st_mtime_ns for part in model.shards],
                    "gpu_layers": model.n_gpu_layers,
                    "devices": list(model.devices) if model.devices is not None else None,
                    "servers": list(model.rpc_servers),
                    "split": [model.split_mode, list(model.tensor_split), model.main_gpu],
                }
                for model in models
            ],
            "devices": [device.description for device in list_devices()],  # the CPU among them
            "cores": usable_cores(),
            "llama": [versions()["llama-cpp-python"], versions()["llama.cpp"], *list_backends(), system_info()],
            "options": [*threads, config.flash_attn, config.type_k, config.type_v, config.exact],
        }
    )

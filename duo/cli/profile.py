"""The profile of a run: found by its models, machine and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from duo.cli.options import RunOptions
from duo.cli.output import warn
from duo.config import ModelConfig, ThreadConfig
from duo.engine.cores import usable_cores
from duo.errors import UsageError
from duo.llama import library
from duo.llama.devices import list_devices
from duo.models.profiles import Profile


def find_profile(options: RunOptions, models: Sequence[ModelConfig]) -> Profile:
    """The profile for these models, on this machine, with all options that change what a decode costs.

    Raises UsageError if there is no config directory.
    """
    return Profile(
        {
            "models": [
                {
                    "path": str(model.path.resolve()),
                    "bytes": sum(part.stat().st_size for part in model.shards),
                    "gpu_layers": model.n_gpu_layers,
                    "devices": list(model.devices) if model.devices is not None else None,
                    "servers": list(model.rpc_servers),
                    "split": [model.split_mode, list(model.tensor_split), model.main_gpu],
                }
                for model in models
            ],
            "devices": [device.description for device in list_devices()],
            "cores": usable_cores(),
            "llama": library.versions()["llama-cpp-python"],
            "options": [
                options.threads,
                options.threads_draft,
                options.cpu_range,
                options.cpu_range_draft,
                options.flash_attn.value,
                options.cache_type_k.value,
                options.cache_type_v.value,
                options.exact,
            ],
        }
    )


def tuned_threads(threads: ThreadConfig, options: RunOptions, kept: dict[str, Any]) -> ThreadConfig:
    """The numbers of threads that `duo tune` found best, where the user asks for none. Damaged ones count as none."""
    if options.threads or options.threads_draft:
        return threads
    try:
        tuned = kept["threads"]
        target, draft, *beside = (int(n) for n in (tuned["target"], tuned["draft"], *tuned["beside"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return threads
    if len(beside) != 2 or not all(1 <= n <= usable_cores() for n in (target, draft, *beside)):
        return threads
    return replace(threads, target=target, draft=(draft,), beside=(beside[0], beside[1]))


def wanted_profile(options: RunOptions, target: ModelConfig, draft: ModelConfig | None) -> Profile | None:
    """The profile, if there is a draft, the options want one and there is a place for it."""
    if draft is None or not options.profile:
        return None
    try:
        return find_profile(options, (target, draft))
    except UsageError as error:
        warn(f"{error}: what is learned is not kept")
        return None


def keep(profile: Profile, document: dict[str, Any]) -> None:
    """Save what was learned, or warn that it could not be."""
    try:
        profile.save(document)
    except OSError as error:
        warn(f"what was learned could not be kept in {profile.path}: {error.strerror} (--no-profile leaves it out)")

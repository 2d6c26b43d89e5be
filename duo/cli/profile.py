"""The profile of a run: found by its models, machine and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from duo.cli.options import RunOptions
from duo.config import ModelConfig, ThreadConfig
from duo.engine.cores import usable_cores
from duo.llama import library
from duo.llama.devices import list_devices
from duo.models.profiles import Profile
from duo.spec.costs import Calibration
from duo.spec.policy import Policy


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


def remembered(policy: Policy, kept: dict[str, Any], mode: str) -> dict[str, Any]:
    """`kept` with what `policy` has learned. How often guesses are right is kept for each `mode` of sampling."""
    state = policy.state()
    return kept | {"policy": state, "acceptance": _acceptance(kept) | {mode: state["acceptance"]}}


def _acceptance(kept: dict[str, Any]) -> dict[str, Any]:
    found = kept.get("acceptance")
    return found if isinstance(found, dict) else {}


def restore(policy: Policy, kept: dict[str, Any], mode: str) -> None:
    """Let `policy` begin with what was learned before. A damaged profile counts as none."""
    if not (learned := kept.get("policy")):
        return
    if isinstance(learned, dict) and "acceptance" in kept:
        learned = learned | {"acceptance": _acceptance(kept).get(mode) or Calibration().state()}
    fresh = Policy(policy.n_max, policy.n_ahead)
    try:
        fresh.restore(learned)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return
    policy.restore(learned)

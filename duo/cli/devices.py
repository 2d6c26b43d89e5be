"""The RPC servers and GPUs of each model, checked."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from duo.cli.options.by_command import RunOptions
from duo.cli.options.groups import EngineOptions
from duo.cli.problems import CUDA, RPC, best_backend, build_with
from duo.cli.terminal.console import warn
from duo.config import EngineConfig
from duo.diagnose.host import read_host
from duo.errors import DeviceError, UsageError
from duo.llama.build import CPU, hiding_variables
from duo.llama.connections import resolved
from duo.llama.devices import add_server, built_gpu_backends, gpus, list_devices
from duo.llama.library import supports_rpc


def show_devices(options: RunOptions) -> int:
    """`duo --list-devices`: print the devices of this machine and of --rpc and --rpcd. Returns the exit status.

    Warns if a GPU is expected but missing. Raises DeviceError.
    """
    servers = (*options.engine.rpc_servers, *(options.engine.draft_rpc_servers or ()))
    check_rpc(servers)
    for server in servers:
        add_server(server, options.engine.rpc_timeout_s)
    for device in list_devices():
        free, total = device.memory
        print(f"{device.name}: {device.description} ({total / 2**20:.0f} MiB, {free / 2**20:.0f} MiB free)")  # noqa: T201
    if why := no_gpu_found():
        warn(why)
    return 0


def with_servers(options: EngineOptions) -> EngineConfig:
    """How the engine is loaded, with the servers of each model.

    Those of --rpc are the draft's; with --rpcd, or without a draft, the target's. With `--draft 0` those of the draft
    are checked, but not used. Raises UsageError, or DeviceError if llama.cpp was built without RPC.
    """
    named, for_draft = tuple(options.engine.rpc_servers), options.engine.draft_rpc_servers
    names_draft = bool(options.is_demo or options.model_draft or options.hf_repo_draft)
    if for_draft and not names_draft:
        check_rpc(for_draft)
        raise UsageError("--rpcd without a draft: name one with -md or -hfd, or use --rpc for the target")
    if for_draft is None and names_draft:
        named, for_draft = (), named
    config = replace(options.engine, rpc_servers=named, draft_rpc_servers=tuple(for_draft or ()))
    check_servers(config)
    return config if config.draft_n_max != 0 else replace(config, draft_rpc_servers=())


def check_servers(config: EngineConfig) -> None:
    """Raise UsageError for servers that cannot be used, or DeviceError if llama.cpp was built without RPC."""
    servers = (*config.rpc_servers, *(config.draft_rpc_servers or ()))
    check_rpc(servers)
    found = Counter(resolved(server) or server for server in servers)
    for server in servers:
        if found[resolved(server) or server] > 1:
            raise UsageError(
                f"{server} is named twice, but a server has one client at a time: start another one on that machine, "
                "on another port"
            )
    _check_used("--rpc", config.rpc_servers, config.n_gpu_layers, config.devices)
    draft_servers = config.draft_rpc_servers or ()
    _check_used("--rpc (the draft)", draft_servers, config.draft_n_gpu_layers, config.draft_devices)


def check_rpc(servers: Sequence[str]) -> None:
    """Raise DeviceError if there are servers, but llama.cpp was built without RPC."""
    if servers and not supports_rpc():
        raise DeviceError(f"--rpc: llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")


def _check_used(option: str, servers: Sequence[str], layers: int | str, devices: Sequence[str] | None) -> None:
    """Raise UsageError for servers that would get no layers."""
    if servers and layers == 0:
        raise UsageError(f"{option} {servers[0]}: with 0 layers (-ngl, -ngld) the server is not used")
    if servers and devices is not None and not devices:
        raise UsageError(f"{option} {servers[0]}: with -dev none (or -devd none) the server is not used")


def check_gpu(config: EngineConfig, *, has_draft: bool) -> None:
    """Warn of options that need a GPU if there is none. Raises UsageError for named devices."""
    if gpus():
        return
    asked: dict[str, object] = {}
    named: dict[str, object] = {}
    if not config.rpc_servers:
        named |= {"-dev": config.devices}
        asked |= {"-ngl": config.n_gpu_layers not in ("auto", 0), "-sm": config.split_mode != "layer"}
        asked |= {"-ts": config.tensor_split, "-mg": config.main_gpu}
    if has_draft and not config.draft_rpc_servers:
        named |= {"-devd": config.draft_devices}
        asked |= {"-ngld": config.draft_n_gpu_layers not in ("auto", 0)}
    why = no_gpu_found()
    if why is None:
        command = build_with(best_backend(read_host()) or CUDA)
        why = f"llama.cpp was built without a GPU backend; to build it with one: {command}"
    if any(named.values()) and all(device.kind == CPU for device in list_devices()):
        raise UsageError(f"{_given(named)}: {why}")
    if any(asked.values()):
        warn(f"{_given(asked)}: all layers stay on the CPU: {why}")


def no_gpu_found() -> str | None:
    """What is wrong if llama.cpp was built for GPUs but finds none; otherwise None."""
    built = built_gpu_backends()
    if gpus() or not built:
        return None
    values = [f"{name}={shlex.quote(value)}" for name, value in hiding_variables(built).items()]
    be = "is" if len(values) == 1 else "are"
    suspects = f", and {' and '.join(values)} {be} set" if values else ""
    return f"llama.cpp finds no GPU for {', '.join(built)}{suspects} (see duo doctor)"


def _given(options: dict[str, object]) -> str:
    return " and ".join(name for name, value in options.items() if value)

"""The RPC servers and GPUs of each model, checked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from duo.cli.options.groups import EngineOptions
from duo.cli.problems import CUDA, RPC, best_backend, build_with
from duo.cli.terminal.console import warn
from duo.config import EngineConfig
from duo.diagnose.host import read_host
from duo.errors import DeviceError, UsageError
from duo.llama.build import CPU, hiding_variables
from duo.llama.devices import built_gpu_backends, gpus, list_devices
from duo.llama.library import supports_rpc


def with_servers(options: EngineOptions) -> EngineConfig:
    """How the engine is loaded, with the servers of each model.

    Those of --rpc are the draft's; with --rpcd, or without a draft, the target's. With `--draft 0` those of the draft
    are checked, but not used. Raises UsageError, or DeviceError if llama.cpp was built without RPC.
    """
    named, for_draft = tuple(options.engine.rpc_servers), options.engine.draft_rpc_servers
    check_rpc(named or for_draft)
    if for_draft and not options.has_draft:
        raise UsageError("--rpcd without a draft: name one with -md or -hfd, or use --rpc for the target")
    if for_draft is None and options.has_draft:
        named, for_draft = (), named
    config = replace(options.engine, rpc_servers=named, draft_rpc_servers=tuple(for_draft or ()))
    check_servers(config)
    return config if config.draft_n_max != 0 else replace(config, draft_rpc_servers=())


def check_servers(config: EngineConfig) -> None:
    """Raise UsageError for servers that cannot be used, or DeviceError if llama.cpp was built without RPC."""
    for_draft = config.draft_rpc_servers or ()
    check_rpc((*config.rpc_servers, *for_draft))
    found = set()
    for server in (*config.rpc_servers, *for_draft):
        if server in found:
            message = "a server has one client at a time: start another one on that machine, on another port"
            raise UsageError(f"{server} is named twice, but {message}")
        found.add(server)
    for servers, layers, devices in (
        (config.rpc_servers, config.n_gpu_layers, config.devices),
        (for_draft, config.draft_n_gpu_layers, config.draft_devices),
    ):
        if servers and (layers == 0 or devices == ()):
            unused = "with 0 layers (-ngl, -ngld) or -dev none (-devd none) the server is not used"
            raise UsageError(f"--rpc {servers[0]}: {unused}")


def check_rpc(servers: Sequence[str] | None) -> None:
    """Raise DeviceError if there are servers, but llama.cpp was built without RPC."""
    if servers and not supports_rpc():
        raise DeviceError(f"llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")


def check_gpu(config: EngineConfig, *, has_draft: bool) -> None:
    """Warn of options that need a GPU if there is none. Raises UsageError for named devices."""
    if gpus():
        return
    named: dict[str, object] = {}
    asked: dict[str, object] = {}
    if not config.rpc_servers:
        named["-dev"] = config.devices
        asked = {"-ngl": config.n_gpu_layers not in ("auto", 0), "-sm": config.split_mode != "layer"}
        asked |= {"-ts": config.tensor_split, "-mg": config.main_gpu}
    if has_draft and not config.draft_rpc_servers:
        named["-devd"] = config.draft_devices
        asked["-ngld"] = config.draft_n_gpu_layers not in ("auto", 0)
    if not any((*named.values(), *asked.values())):
        return
    command = build_with(best_backend(read_host()) or CUDA)
    why = no_gpu_found() or f"llama.cpp was built without a GPU backend; to build it with one: {command}"
    if any(named.values()) and all(device.kind == CPU for device in list_devices()):
        raise UsageError(f"{_given(named)}: {why}")
    if flags := _given(asked):
        warn(f"{flags}: all layers stay on the CPU: {why}")


def _given(options: dict[str, object]) -> str:
    return " and ".join(flag for flag, value in options.items() if value)


def no_gpu_found() -> str | None:
    """What is wrong if llama.cpp was built for GPUs but finds none; otherwise None."""
    built = built_gpu_backends()
    if gpus() or not built:
        return None
    values = [f"{name}={shlex.quote(value)}" for name, value in hiding_variables(built).items()]
    suspects = f" with {' and '.join(values)}" if values else ""
    return f"llama.cpp finds no GPU for {', '.join(built)}{suspects} (see duo doctor)"

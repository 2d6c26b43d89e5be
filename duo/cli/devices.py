"""The RPC servers and GPUs of each model, checked."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from duo.cli.options.devices import DeviceOptions
from duo.cli.options.engine import EngineOptions
from duo.cli.options.run import RunOptions
from duo.cli.problems import CUDA, RPC, best_backend, build_with
from duo.cli.terminal.console import warn
from duo.diagnose.host import read_host
from duo.errors import DeviceError, UsageError
from duo.llama.build import CPU, built_gpu_backends, hiding_variables
from duo.llama.connections import resolved
from duo.llama.devices import add_server, gpus, list_devices
from duo.llama.library import supports_rpc


def show_devices(options: RunOptions) -> int:
    """`duo --list-devices`: print the devices of this machine and of --rpc and --rpcd. Returns the exit status.

    Warns if a GPU is expected but missing. Raises DeviceError.
    """
    servers = (*(options.rpc or ()), *(options.rpc_draft or ()))
    check_rpc(servers)
    for server in servers:
        add_server(server, options.rpc_timeout)
    for device in list_devices():
        free, total = device.memory
        print(f"{device.name}: {device.description} ({total / 2**20:.0f} MiB, {free / 2**20:.0f} MiB free)")  # noqa: T201
    if why := no_gpu_found():
        warn(why)
    return 0


@dataclass(frozen=True, slots=True)
class Servers:
    """The RPC servers of each model."""

    target: tuple[str, ...] = ()
    draft: tuple[str, ...] = ()


def rpc_servers(options: EngineOptions) -> Servers:
    """The servers of --rpc (for the draft; with --rpcd, or without a draft, for the target) and --rpcd.

    With `--draft 0` those of the draft are checked, but not used. Raises UsageError, or DeviceError if llama.cpp was
    built without RPC.
    """
    named, for_draft = options.rpc or (), options.rpc_draft
    check_rpc(named or for_draft)
    names_draft = bool(options.is_demo or options.model_draft or options.hf_repo_draft)
    if for_draft and not names_draft:
        raise UsageError("--rpcd without a draft: name one with -md or -hfd, or use --rpc for the target")
    servers = Servers(named, for_draft or ()) if for_draft is not None or not names_draft else Servers((), named)
    all_servers = (*servers.target, *servers.draft)
    found = Counter(resolved(server) or server for server in all_servers)
    for server in all_servers:
        if found[resolved(server) or server] > 1:
            raise UsageError(
                f"{server} is named twice, but a server has one client at a time: start another one on that machine, "
                "on another port"
            )
    _check_used("--rpc", servers.target, options.gpu_layers, options.device)
    _check_used("--rpc (the draft)", servers.draft, options.gpu_layers_draft, options.device_draft)
    return servers if options.draft != 0 else Servers(servers.target)


def check_rpc(servers: tuple[str, ...] | None) -> None:
    """Raise DeviceError if there are servers, but llama.cpp was built without RPC."""
    if servers and not supports_rpc():
        raise DeviceError(f"--rpc: llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")


def _check_used(option: str, servers: tuple[str, ...], layers: int | None, devices: tuple[str, ...] | None) -> None:
    """Raise UsageError for servers that would get no layers."""
    if servers and layers == 0:
        raise UsageError(f"{option} {servers[0]}: with 0 layers (-ngl, -ngld) the server is not used")
    if servers and devices == ():
        raise UsageError(f"{option} {servers[0]}: with -dev none (or -devd none) the server is not used")


def check_gpu(options: DeviceOptions, servers: Servers, *, has_draft: bool) -> None:
    """Warn of options that need a GPU if there is none. Raises UsageError for named devices."""
    if gpus():
        return
    asked: dict[str, object] = {}
    named: dict[str, object] = {}
    if not servers.target:
        named |= {"-dev": options.device}
        asked |= {"-ngl": options.gpu_layers, "-sm": options.split_mode != "layer"}
        asked |= {"-ts": options.tensor_split, "-mg": options.main_gpu}
    if has_draft and not servers.draft:
        named |= {"-devd": options.device_draft}
        asked |= {"-ngld": options.gpu_layers_draft}
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

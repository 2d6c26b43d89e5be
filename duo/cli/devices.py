"""Which devices each model is on, from the options."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from duo.cli.options.devices import DeviceOptions, SplitMode
from duo.cli.options.engine import EngineOptions
from duo.cli.remedies import CUDA, GPU_BACKENDS, RPC, best_backend, build_with
from duo.cli.terminal.console import warn
from duo.diagnose.host import read_host
from duo.errors import DeviceError, UsageError
from duo.llama.connections import resolved
from duo.llama.devices import CPU, gpus, list_backends, list_devices
from duo.llama.library import supports_rpc


@dataclass(frozen=True, slots=True)
class Servers:
    """The RPC servers of each model."""

    target: tuple[str, ...] = ()
    draft: tuple[str, ...] = ()


def rpc_servers(options: EngineOptions) -> Servers:
    """Who serves which model: --rpc the draft, but the target if none is named or --rpcd says where that is.

    With `--draft 0` a draft that is named keeps its servers, and neither is used. Raises UsageError, or DeviceError if
    this build has no RPC.
    """
    named, for_draft = options.rpc or (), options.rpc_draft
    check_rpc(named or for_draft)
    names_draft = bool(options.is_demo or options.model_draft or options.hf_repo_draft)
    if for_draft and not names_draft:
        raise UsageError("--rpcd without a draft: name one with -md or -hfd, or give the target's servers to --rpc")
    servers = Servers(named, for_draft or ()) if for_draft is not None or not names_draft else Servers((), named)
    all_servers = (*servers.target, *servers.draft)
    found = Counter(resolved(server) or server for server in all_servers)
    for server in all_servers:
        if found[resolved(server) or server] > 1:
            raise UsageError(
                f"{server} is named twice: a server has one client at a time; start another on that machine, with "
                "another port"
            )
    _check_used("--rpc", servers.target, int(options.gpu_layers), options.device)
    _check_used("--rpc (the draft)", servers.draft, int(options.gpu_layers_draft), options.device_draft)
    return servers if options.draft != 0 else Servers(servers.target)


def check_rpc(servers: tuple[str, ...] | None) -> None:
    """Raise DeviceError if some are asked for and this build has no RPC."""
    if servers and not supports_rpc():
        raise DeviceError(f"--rpc: llama.cpp was built without RPC here; this builds it: {build_with(RPC)}")


def _check_used(option: str, servers: tuple[str, ...], layers: int, devices: tuple[str, ...] | None) -> None:
    """Raise UsageError for servers to which no layer could go."""
    if servers and layers == 0:
        raise UsageError(f"{option} {servers[0]}: 0 layers (-ngl, -ngld) leave nothing to put there")
    if servers and devices == ():
        raise UsageError(f"{option} {servers[0]}: -dev none (or -devd none) leaves nothing to put there")


def check_gpu(options: DeviceOptions, servers: Servers, *, has_draft: bool) -> None:
    """Warn of what needs a GPU where there is none. Raises UsageError for devices that are named."""
    if gpus():
        return
    asked = [] if servers.target else _asked("-ngl", options.gpu_layers.named and options.gpu_layers != 0)
    asked += [] if servers.target else _asked("-sm", options.split_mode is not SplitMode.LAYER)
    asked += [] if servers.target else _asked("-ts", options.tensor_split) + _asked("-mg", options.main_gpu)
    if has_draft and not servers.draft:
        asked += _asked("-ngld", options.gpu_layers_draft.named and options.gpu_layers_draft != 0)
        asked += _asked("-smd", options.split_mode_draft is not SplitMode.LAYER)
        asked += _asked("-tsd", options.tensor_split_draft) + _asked("-mgd", options.main_gpu_draft)
    named = [] if servers.target else _asked("-dev", options.device)
    named += _asked("-devd", has_draft and not servers.draft and options.device_draft)
    if GPU_BACKENDS & set(list_backends()):
        why = "llama.cpp finds no GPU here (duo doctor may know why)"
    else:
        command = build_with(best_backend(read_host()) or CUDA)
        why = f"llama.cpp was built without a GPU back end here; this builds it with one: {command}"
    if named and all(device.kind == CPU for device in list_devices()):
        raise UsageError(f"{' and '.join(named)}: {why}")
    if asked:
        warn(f"{' and '.join(asked)}: all layers stay on the CPU, because {why}")


def _asked(option: str, value: object) -> list[str]:
    return [option] if value else []

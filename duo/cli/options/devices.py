"""Where the layers of each model go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import typer

from duo.cli.options import declare
from duo.config import ALL_LAYERS, split_endpoint
from duo.config.engine_config import MAX_SHARE

DEVICES = "Devices"


def parse_layers(value: str | int | None) -> int | None:
    """-ngl: a number, `all`, or `auto` (None)."""
    if value == "auto" or value is None:
        return None
    if value == "all":
        return ALL_LAYERS
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number, 'all' or 'auto'") from None


class Names(tuple[str, ...]):
    """Names of devices, or addresses of servers."""


class Proportions(tuple[float, ...]):
    """Proportions of devices."""


def parse_names(value: str | Names) -> Names:
    """Comma-separated names; `none` is the empty list."""
    if isinstance(value, Names):
        return value
    names = Names(name.strip() for name in value.split(","))
    if not all(names):
        raise typer.BadParameter(f"{value!r}: a name is missing")
    return Names() if names == ("none",) else names


def parse_servers(value: str | Names) -> Names:
    """Comma-separated host:port; `none` is the empty list."""
    servers = parse_names(value)
    for server in servers:
        try:
            split_endpoint(server)
        except ValueError:
            raise typer.BadParameter(f"{server!r} is not of the form host:port (IPv4)") from None
    return servers


def parse_shares(value: str | Proportions) -> Proportions:
    """Proportions separated by commas or slashes, as in llama.cpp."""
    if isinstance(value, Proportions):
        return value
    try:
        shares = Proportions(float(share) for share in value.replace("/", ",").split(","))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not of the form N,N,...") from None
    if not all(0 <= share <= MAX_SHARE for share in shares) or max(shares) < 1 / MAX_SHARE:
        raise typer.BadParameter(f"{value!r}: proportions must be from 0 to {MAX_SHARE:g}, and not all 0")
    return shares


SplitMode = Literal["none", "layer", "row", "tensor"]


option = partial(declare.option, panel=DEVICES)
layers_option = partial(option, metavar="N|all|auto", parser=parse_layers, show_default="auto")
device_option = partial(option, metavar="NAME,...|none", parser=parse_names, show_default="all GPUs")
split_option = partial(option, metavar="N,N,...", parser=parse_shares, show_default="by free memory")
gpu_option = partial(option, metavar="I", min=0)
RpcTimeoutOpt = Annotated[float, option(
    "--rpc-timeout", metavar="SECONDS", min=1, max=86_400,
    help="Time after which an RPC server that does not respond counts as lost.")]  # fmt: skip


# fmt: off
@dataclass(frozen=True)
class DeviceOptions:
    """Which devices of this machine each model is on."""

    gpu_layers: Annotated[int | None, layers_option(
        "-ngl", "--gpu-layers", "--n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS",
        help="Number of target layers to offload to its devices; auto: as many as fit, with the draft.")] = None
    gpu_layers_draft: Annotated[int | None, layers_option(
        "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        help="Number of draft layers to offload to its devices.")] = None
    device: Annotated[Names | None, device_option(
        "-dev", "--device", env="LLAMA_ARG_DEVICE",
        help="Devices of the target, named as by --list-devices; none: do not offload.")] = None
    device_draft: Annotated[Names | None, device_option(
        "-devd", "--device-draft", "--spec-draft-device", help="Devices of the draft.")] = None
    split_mode: Annotated[SplitMode, option(
        "-sm", "--split-mode", env="LLAMA_ARG_SPLIT_MODE",
        help="How to split the target across several devices, as in llama.cpp.")] = "layer"
    tensor_split: Annotated[Proportions | None, split_option(
        "-ts", "--tensor-split", env="LLAMA_ARG_TENSOR_SPLIT",
        help="Fraction of the target for each device: a list of proportions, such as 3,1.")] = None
    main_gpu: Annotated[int, gpu_option(
        "-mg", "--main-gpu", env="LLAMA_ARG_MAIN_GPU",
        help="Index of the device that the target uses with -sm none.")] = 0


@dataclass(frozen=True)
class RpcOptions:
    """Which devices of remote machines each model is on."""

    rpc: Annotated[Names | None, option(
        "--rpc", metavar="HOST:PORT,...", parser=parse_servers, env="LLAMA_ARG_RPC",
        help="RPC servers (duo rpc-server, or llama.cpp's) for the draft; with --rpcd, or without a draft, for the "
        "target.")] = None
    rpc_draft: Annotated[Names | None, option(
        "--rpcd", "--rpc-draft", metavar="HOST:PORT,...|none", parser=parse_servers,
        help="RPC servers for the draft; --rpc is then for the target. none: the draft is on this machine.")] = None
    rpc_timeout: RpcTimeoutOpt = 8.0

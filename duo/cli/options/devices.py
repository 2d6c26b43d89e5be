"""The options that say which devices each model is on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated

import typer

from duo.cli.options import declare
from duo.config import ALL_LAYERS
from duo.llama.connections import split_endpoint

DEVICES = "Devices"
option = partial(declare.option, panel=DEVICES)


class Layers(int):
    """A number of layers; `named` is False for `auto`."""

    named: bool = True


def parse_layers(value: str | Layers) -> Layers:
    """-ngl: a number, `all`, or `auto` (as many as fit)."""
    if isinstance(value, Layers):
        return value
    if value in ("all", "auto"):
        layers = Layers(ALL_LAYERS)
        layers.named = value == "all"
        return layers
    if not value.lstrip("-").isdecimal():
        raise typer.BadParameter(f"{value!r} is no number, 'all' or 'auto'")
    return Layers(value)


AUTO_LAYERS = parse_layers("auto")


class Names(tuple[str, ...]):
    """Names of devices, or of servers."""


class Proportions(tuple[float, ...]):
    """Proportions."""


def parse_names(value: str | Names) -> Names:
    """Names with commas between them; `none` is no name."""
    if isinstance(value, Names):
        return value
    names = Names(name.strip() for name in value.split(","))
    if not all(names):
        raise typer.BadParameter(f"{value!r}: a name is missing")
    return Names() if names == ("none",) else names


def parse_servers(value: str | Names) -> Names:
    """host:port with commas between them; `none` is no server."""
    servers = parse_names(value)
    for server in servers:
        try:
            split_endpoint(server)
        except ValueError:
            raise typer.BadParameter(f"{server!r} is not written host:port (IPv4)") from None
    return servers


def parse_shares(value: str | Proportions) -> Proportions:
    """Proportions with commas or slashes between them, as llama.cpp takes them."""
    if isinstance(value, Proportions):
        return value
    try:
        shares = Proportions(float(share) for share in value.replace("/", ",").split(","))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not written N,N,... with numbers") from None
    if not all(0 <= share < math.inf for share in shares) or not any(shares):
        raise typer.BadParameter(f"{value!r}: proportions are 0 or more, and not all 0")
    return shares


class SplitMode(str, Enum):
    """How several devices share a model."""

    NONE = "none"
    LAYER = "layer"
    ROW = "row"
    TENSOR = "tensor"


# fmt: off
RpcTimeoutOpt = Annotated[float, option(
    "--rpc-timeout", metavar="SECONDS", min=1,
    help="How long a server may give no sign of life before it counts as dead.")]


@dataclass(frozen=True)
class DeviceOptions:
    """Which devices of this machine each model is on."""

    gpu_layers: Annotated[Layers, option(
        "-ngl", "--gpu-layers", "--n-gpu-layers", metavar="N|all|auto", parser=parse_layers, show_default="auto",
        env="LLAMA_ARG_N_GPU_LAYERS",
        help="Layers of the target on its devices; auto: as many as fit beside the draft.")] = AUTO_LAYERS
    gpu_layers_draft: Annotated[Layers, option(
        "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", metavar="N|all|auto", parser=parse_layers,
        show_default="auto", env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        help="Layers of the draft on its devices.")] = AUTO_LAYERS
    device: Annotated[Names | None, option(
        "-dev", "--device", metavar="NAME,...|none", parser=parse_names, env="LLAMA_ARG_DEVICE",
        show_default="all GPUs", help="Devices of the target, as --list-devices names them.")] = None
    device_draft: Annotated[Names | None, option(
        "-devd", "--device-draft", "--spec-draft-device", metavar="NAME,...|none", parser=parse_names,
        show_default="all GPUs", help="Devices of the draft.")] = None
    split_mode: Annotated[SplitMode, option(
        "-sm", "--split-mode", env="LLAMA_ARG_SPLIT_MODE",
        help="How several devices share the target: see llama.cpp.")] = SplitMode.LAYER
    split_mode_draft: Annotated[SplitMode, option(
        "-smd", "--split-mode-draft", help="How several devices share the draft.")] = SplitMode.LAYER
    tensor_split: Annotated[Proportions | None, option(
        "-ts", "--tensor-split", metavar="N,N,...", parser=parse_shares, show_default="by free memory",
        env="LLAMA_ARG_TENSOR_SPLIT", help="In what proportion they share the target.")] = None
    tensor_split_draft: Annotated[Proportions | None, option(
        "-tsd", "--tensor-split-draft", metavar="N,N,...", parser=parse_shares, show_default="by free memory",
        help="In what proportion they share the draft.")] = None
    main_gpu: Annotated[int, option(
        "-mg", "--main-gpu", metavar="I", min=0, env="LLAMA_ARG_MAIN_GPU",
        help="The one of the target's devices that -sm none uses, counted from 0.")] = 0
    main_gpu_draft: Annotated[int, option(
        "-mgd", "--main-gpu-draft", metavar="I", min=0, help="The same of the draft's devices.")] = 0


@dataclass(frozen=True)
class RpcOptions:
    """Which devices of other machines each model is on."""

    rpc: Annotated[Names | None, option(
        "--rpc", metavar="HOST:PORT,...", parser=parse_servers, env="LLAMA_ARG_RPC",
        help="Servers (duo rpc-server, llama.cpp's rpc-server) whose devices the draft is on; with --rpcd, or without "
        "a draft, the target.")] = None
    rpc_draft: Annotated[Names | None, option(
        "--rpcd", "--rpc-draft", metavar="HOST:PORT,...|none", parser=parse_servers,
        help="Servers that the draft is on, and --rpc is for the target; none: the draft is on this machine.")] = None
    rpc_timeout: RpcTimeoutOpt = 8.0

"""The options that say which devices each model is on."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated

import typer

from duo.cli.declare import option
from duo.config import ALL_LAYERS
from duo.llama.connections import split_endpoint

DEVICES = "Devices"


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


class Shares(tuple[float, ...]):
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


def parse_shares(value: str | Shares) -> Shares:
    """Proportions with commas or slashes between them, as llama.cpp takes them."""
    if isinstance(value, Shares):
        return value
    try:
        shares = Shares(float(share) for share in value.replace("/", ",").split(","))
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


LayersOpt = Annotated[
    Layers,
    option("-ngl", "--gpu-layers", "--n-gpu-layers", panel=DEVICES, metavar="N|all|auto", parser=parse_layers,
            show_default="auto", env="LLAMA_ARG_N_GPU_LAYERS",
           help="Layers of the target on its devices; auto: as many as fit beside the draft."),
]  # fmt: skip
LayersDraftOpt = Annotated[
    Layers,
    option("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", panel=DEVICES, metavar="N|all|auto",
            parser=parse_layers, show_default="auto", env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
            help="Layers of the draft on its devices."),
]  # fmt: skip
DeviceOpt = Annotated[
    Names | None,
    option("-dev", "--device", panel=DEVICES, metavar="NAME,...|none", parser=parse_names, env="LLAMA_ARG_DEVICE",
           show_default="all GPUs", help="Devices of the target, as --list-devices names them."),
]  # fmt: skip
DeviceDraftOpt = Annotated[
    Names | None,
    option("-devd", "--device-draft", "--spec-draft-device", panel=DEVICES, metavar="NAME,...|none",
           parser=parse_names, show_default="all GPUs", help="Devices of the draft."),
]  # fmt: skip
SplitModeOpt = Annotated[
    SplitMode,
    option("-sm", "--split-mode", panel=DEVICES, env="LLAMA_ARG_SPLIT_MODE",
           help="How several devices share the target: see llama.cpp."),
]  # fmt: skip
SplitModeDraftOpt = Annotated[
    SplitMode, option("-smd", "--split-mode-draft", panel=DEVICES, help="How several devices share the draft.")
]
TensorSplitOpt = Annotated[
    Shares | None,
    option("-ts", "--tensor-split", panel=DEVICES, metavar="N,N,...", parser=parse_shares,
           show_default="by free memory", env="LLAMA_ARG_TENSOR_SPLIT",
           help="In what proportion they share the target."),
]  # fmt: skip
TensorSplitDraftOpt = Annotated[
    Shares | None,
    option("-tsd", "--tensor-split-draft", panel=DEVICES, metavar="N,N,...", parser=parse_shares,
           show_default="by free memory", help="In what proportion they share the draft."),
]  # fmt: skip
MainGpuOpt = Annotated[
    int,
    option("-mg", "--main-gpu", panel=DEVICES, metavar="I", min=0, env="LLAMA_ARG_MAIN_GPU",
           help="The one of the target's devices that -sm none uses, counted from 0."),
]  # fmt: skip
MainGpuDraftOpt = Annotated[
    int, option("-mgd", "--main-gpu-draft", panel=DEVICES, metavar="I", min=0, help="The same of the draft's devices.")
]
RpcOpt = Annotated[
    Names | None,
    option("--rpc", panel=DEVICES, metavar="HOST:PORT,...", parser=parse_servers, env="LLAMA_ARG_RPC",
           help="Servers (duo rpc-server, llama.cpp's rpc-server) whose devices the draft is on; with --rpcd, or "
           "without a draft, the target."),
]  # fmt: skip
RpcDraftOpt = Annotated[
    Names | None,
    option("--rpcd", "--rpc-draft", panel=DEVICES, metavar="HOST:PORT,...|none", parser=parse_servers,
           help="Servers that the draft is on, and --rpc is for the target; none: the draft is on this machine."),
]  # fmt: skip
RpcTimeoutOpt = Annotated[
    float,
    option("--rpc-timeout", panel=DEVICES, metavar="SECONDS", min=1,
           help="How long a server may give no sign of life before it counts as dead."),
]  # fmt: skip

"""The options of `duo back`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli.options.context import CacheOptions, WarmupOption
from duo.cli.options.declare import CONTEXT, MAIN, MODELS, THREADS, HelpOpt, UntilEofOpt, option
from duo.cli.options.devices import (
    DEVICES,
    Names,
    RpcTimeoutOpt,
    device_option,
    layers_option,
    parse_servers,
)
from duo.cli.options.engine import EngineOptions
from duo.cli.options.model import DRAFT_FILE_VARIABLES, OfflineOpt, WeightOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.server import BACKS


# fmt: off
@dataclass(frozen=True)
class DraftOptions:
    """The draft, and its lead."""

    model: Annotated[Path | None, option(
        "-m", "--model", "-md", "--model-draft", panel=MAIN, metavar="GGUF", env=DRAFT_FILE_VARIABLES,
        help="Draft model: small. Default: that of the demo pair.")] = None
    vocab: Annotated[Path | None, option(
        "--vocab", panel=MAIN, metavar="GGUF",
        help="File with the vocabulary of the lead's target, if the draft has another one: the target itself, or a "
        "file with the vocabulary only.")] = None
    lead: Annotated[str, option(
        "--lead", panel=MAIN, metavar="URL",
        help="Address of the lead: ws:// or wss://, host and port.")] = "ws://localhost:5555"
    token: Annotated[str | None, option(
        "--token", "--back-token", panel=BACKS, metavar="TOKEN", env="DUO_BACK_TOKEN", show_default="none",
        help="Token that the lead requires (its --back-token).")] = None
    token_file: Annotated[Path | None, option(
        "--token-file", "--back-token-file", panel=BACKS, metavar="FILE", help="File with the token.")] = None
    hf_repo: Annotated[str | None, option(
        "-hf", "-hfd", "--hf-repo", "--hf-repo-draft", panel=MODELS, metavar="USER/REPO[:QUANT]",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", help="Hugging Face repository of the draft.")] = None
    offline: OfflineOpt = False


@dataclass(frozen=True)
class PlaceOptions:
    """Where the draft computes."""

    threads: Annotated[int | None, option(
        "-t", "-td", "--threads", panel=THREADS, metavar="N", min=1, env="LLAMA_ARG_THREADS",
        show_default="all cores", help="Number of threads.")] = None
    gpu_layers: Annotated[int | None, layers_option(
        "-ngl", "-ngld", "--gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS",
        help="Number of draft layers to offload to its devices; auto: as many as fit.")] = None
    device: Annotated[Names | None, device_option(
        "-dev", "-devd", "--device", "--device-draft", env="LLAMA_ARG_DEVICE",
        help="Devices of the draft, named as by duo --list-devices; none: do not offload.")] = None
    rpc: Annotated[Names | None, option(
        "--rpc", "--rpcd", panel=DEVICES, metavar="HOST:PORT,...", parser=parse_servers, env="LLAMA_ARG_RPC",
        help="RPC servers (duo rpc-server, or llama.cpp's) for the draft.")] = None
    rpc_timeout: RpcTimeoutOpt = 8.0
    until_eof: UntilEofOpt = False
    ctx_size: Annotated[int, option(
        "-c", "--ctx-size", panel=CONTEXT, metavar="N", min=0, env="LLAMA_ARG_CTX_SIZE",
        help="Size of the context in tokens; 0: as the lead's texts need, up to the size that the draft was trained "
        "with.")] = 0


@dataclass(frozen=True)
class BackOptions(DraftOptions, PlaceOptions, EngineOptions):
    """The options of `duo back`."""

    offers = (DraftOptions, WeightOptions, PlaceOptions, CacheOptions, WarmupOption, LogOptions)
    help: HelpOpt = False

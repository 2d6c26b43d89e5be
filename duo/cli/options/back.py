"""The options of `duo back`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli.options.context import CacheOptions
from duo.cli.options.declare import CONTEXT, HARDWARE, MODELS, HelpOpt, UntilEofOpt, option
from duo.cli.options.devices import (
    AUTO_LAYERS,
    DEVICES,
    Layers,
    Names,
    Proportions,
    RpcTimeoutOpt,
    SplitMode,
    parse_layers,
    parse_names,
    parse_servers,
    parse_shares,
)
from duo.cli.options.engine import EngineOptions
from duo.cli.options.model import OfflineOpt, WeightOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.server import BACKS

FIRST = "What matters first"


# fmt: off
@dataclass(frozen=True)
class DraftOptions:
    """Which draft, and for whom."""

    model: Annotated[Path | None, option(
        "-m", "--model", "-md", "--model-draft", panel=FIRST, metavar="GGUF",
        env=["LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"],
        help="The draft: a small model with the vocabulary of the lead's. Without it, the demo pair's.")] = None
    lead: Annotated[str, option(
        "--lead", panel=FIRST, metavar="URL",
        help="Where the lead is: ws:// or wss://, host and port.")] = "ws://localhost:5555"
    token: Annotated[str | None, option(
        "--token", "--back-token", panel=BACKS, metavar="TOKEN", env="DUO_BACK_TOKEN", show_default="none",
        help="What the lead wants to be told (its --back-token).")] = None
    token_file: Annotated[Path | None, option(
        "--token-file", "--back-token-file", panel=BACKS, metavar="FILE", help="The same from a file.")] = None
    hf_repo: Annotated[str | None, option(
        "-hf", "-hfd", "--hf-repo", "--hf-repo-draft", panel=MODELS, metavar="USER/REPO[:QUANT]",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", help="The draft from Hugging Face.")] = None
    offline: OfflineOpt = False


@dataclass(frozen=True)
class PlaceOptions:
    """Where the draft computes."""

    threads: Annotated[int | None, option(
        "-t", "-td", "--threads", panel=HARDWARE, metavar="N", min=1, env="LLAMA_ARG_THREADS",
        show_default="all cores", help="Threads of the draft.")] = None
    gpu_layers: Annotated[Layers, option(
        "-ngl", "-ngld", "--gpu-layers", panel=DEVICES, metavar="N|all|auto", parser=parse_layers,
        show_default="auto", env="LLAMA_ARG_N_GPU_LAYERS",
        help="Layers of the draft on its devices.")] = AUTO_LAYERS
    device: Annotated[Names | None, option(
        "-dev", "-devd", "--device", "--device-draft", panel=DEVICES, metavar="NAME,...|none",
        parser=parse_names, env="LLAMA_ARG_DEVICE", show_default="all GPUs",
        help="Devices of the draft, as duo --list-devices names them.")] = None
    split_mode: Annotated[SplitMode, option(
        "-sm", "-smd", "--split-mode", "--split-mode-draft", panel=DEVICES, env="LLAMA_ARG_SPLIT_MODE",
        help="How several devices share the draft: see llama.cpp.")] = SplitMode.LAYER
    tensor_split: Annotated[Proportions | None, option(
        "-ts", "-tsd", "--tensor-split", "--tensor-split-draft", panel=DEVICES, metavar="N,N,...",
        parser=parse_shares, show_default="by free memory", env="LLAMA_ARG_TENSOR_SPLIT",
        help="In what proportion they share it.")] = None
    main_gpu: Annotated[int, option(
        "-mg", "-mgd", "--main-gpu", "--main-gpu-draft", panel=DEVICES, metavar="I", min=0,
        env="LLAMA_ARG_MAIN_GPU", help="The one of them that -sm none uses, counted from 0.")] = 0
    rpc: Annotated[Names | None, option(
        "--rpc", "--rpcd", panel=DEVICES, metavar="HOST:PORT,...", parser=parse_servers, env="LLAMA_ARG_RPC",
        help="Servers (duo rpc-server, llama.cpp's rpc-server) whose devices the draft is on.")] = None
    rpc_timeout: RpcTimeoutOpt = 8.0
    until_eof: UntilEofOpt = False
    ctx_size: Annotated[int, option(
        "-c", "--ctx-size", panel=CONTEXT, metavar="N", min=0, env="LLAMA_ARG_CTX_SIZE",
        help="Context in tokens; 0 is what the lead's texts need, up to what the draft was trained for.")] = 0


@dataclass(frozen=True)
class BackOptions(DraftOptions, PlaceOptions, EngineOptions):
    """The options of `duo back`."""

    offers = (DraftOptions, WeightOptions, PlaceOptions, CacheOptions, LogOptions)
    help: HelpOpt = False

"""The options of `duo back`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli import options as opt
from duo.cli.declare import option
from duo.cli.server_options import BACKS

ModelOpt = Annotated[
    Path | None,
    option("-m", "--model", "-md", "--model-draft", panel=opt.MAIN, metavar="GGUF", env="LLAMA_ARG_MODEL",
           help="The draft: a small model with the vocabulary of the lead's. Without it, the demo pair's."),
]  # fmt: skip
LeadOpt = Annotated[
    str, option("--lead", panel=opt.MAIN, metavar="URL", help="Where the lead is: ws:// or wss://, host and port.")
]
TokenOpt = Annotated[
    str | None,
    option("--token", "--back-token", panel=BACKS, metavar="TOKEN", env="DUO_BACK_TOKEN", show_default="none",
           help="What the lead wants to be told (its --back-token)."),
]  # fmt: skip
TokenFileOpt = Annotated[
    Path | None, option("--token-file", "--back-token-file", panel=BACKS, metavar="FILE", help="The same from a file.")
]


@dataclass(frozen=True, slots=True)
class BackOptions:
    """The options of `duo back`."""

    model: ModelOpt = None
    lead: LeadOpt = "ws://localhost:5555"
    token: TokenOpt = None
    token_file: TokenFileOpt = None
    hf_repo: opt.HfOpt = None
    offline: opt.OfflineOpt = False
    mlock: opt.MlockOpt = False
    mmap: opt.MmapOpt = True
    threads: opt.ThreadsOpt = None
    gpu_layers: opt.LayersOpt = opt.AUTO_LAYERS
    ctx_size: opt.ContextSizeOpt = 0
    flash_attn: opt.FlashAttnOpt = opt.Switch.AUTO
    cache_type_k: opt.CacheTypeKOpt = opt.CacheType.F16
    cache_type_v: opt.CacheTypeVOpt = opt.CacheType.F16
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False

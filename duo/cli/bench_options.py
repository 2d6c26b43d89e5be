"""The options of `duo bench`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from duo.cli import device_options as dev
from duo.cli import options as opt
from duo.cli.declare import option

BENCH = "What is measured"


class Format(str, Enum):
    """How the results are written."""

    MD = "md"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


ModesOpt = Annotated[
    str | None,
    option("--modes", panel=BENCH, metavar="LIST", show_default="plain,sync,async,auto",
           help="plain: the target alone; sync: in turns; async: both at once; auto: whatever duo finds fastest; "
           "remote: async, with duo back in a process of its own."),
]  # fmt: skip
DraftOpt = Annotated[
    str,
    option("--draft", "--draft-max", "--spec-draft-n-max", panel=BENCH, metavar="LIST",
           help="Most candidates verified at once: numbers and auto, such as 2,4,8,auto. Each is a run of its own."),
]  # fmt: skip
LengthOpt = Annotated[int, option("-n", "--predict", panel=BENCH, metavar="N", min=2, help="Tokens per text.")]
RepetitionsOpt = Annotated[
    int,
    option("-r", "--repetitions", panel=BENCH, metavar="N", min=1,
           help="Rounds. In each everybody writes once, after a prompt of the next category."),
]  # fmt: skip
PromptsOpt = Annotated[
    str | None,
    option("--prompts", panel=BENCH, metavar="FILE", show_default="built in",
           help=r"A file with a prompt in each line (\n is a line break); \[name] alone begins a category."),
]  # fmt: skip
CategoriesOpt = Annotated[
    str | None,
    option("--categories", panel=BENCH, metavar="LIST", show_default="all",
           help="Only these. Built in: chat, code, story, summary, translation, list, JSON, reasoning."),
]  # fmt: skip
RawOpt = Annotated[bool, option("--raw", panel=BENCH, help="Leave the prompts out of the model's chat template.")]
PeersOpt = Annotated[
    str | None,
    option("--peers", panel=BENCH, metavar="NAME=PATH,…", show_default="those on the PATH",
           help="Programs to measure beside it: llama-completion, llama-cli, llama-speculative-simple, llama-server; "
           "none for none."),
]  # fmt: skip
OutputOpt = Annotated[
    Format, option("-o", "--output", panel=opt.OUTPUT, help="md and csv: tables; json and jsonl: every run too.")
]
PlotOpt = Annotated[
    Path | None,
    option(
        "--plot", panel=opt.OUTPUT, metavar="FILE", help=r"Draw the results, as .svg or .png (needs duo-llm\[bench])."
    ),
]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `duo bench`: what is measured, and those of a run that decide what a decode costs."""

    model: opt.ModelOpt = None
    model_draft: opt.DraftModelOpt = None
    modes: ModesOpt = None
    draft: DraftOpt = "auto"
    predict: LengthOpt = 256
    repetitions: RepetitionsOpt = 5
    prompts: PromptsOpt = None
    categories: CategoriesOpt = None
    raw: RawOpt = False
    peers: PeersOpt = None
    hf_repo: opt.HfOpt = None
    hf_repo_draft: opt.HfDraftOpt = None
    offline: opt.OfflineOpt = False
    exact: opt.ExactOpt = False
    gpu_layers: dev.LayersOpt = dev.AUTO_LAYERS
    gpu_layers_draft: dev.LayersDraftOpt = dev.AUTO_LAYERS
    device: dev.DeviceOpt = None
    device_draft: dev.DeviceDraftOpt = None
    split_mode: dev.SplitModeOpt = dev.SplitMode.LAYER
    split_mode_draft: dev.SplitModeDraftOpt = dev.SplitMode.LAYER
    tensor_split: dev.TensorSplitOpt = None
    tensor_split_draft: dev.TensorSplitDraftOpt = None
    main_gpu: dev.MainGpuOpt = 0
    main_gpu_draft: dev.MainGpuDraftOpt = 0
    threads: opt.ThreadsOpt = None
    threads_draft: opt.ThreadsDraftOpt = None
    ctx_size: opt.ContextSizeOpt = 0
    flash_attn: opt.FlashAttnOpt = opt.Switch.AUTO
    cache_type_k: opt.CacheTypeKOpt = opt.CacheType.F16
    cache_type_v: opt.CacheTypeVOpt = opt.CacheType.F16
    output: OutputOpt = Format.MD
    plot: PlotOpt = None
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False

"""The options of `duo check`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duo.cli import device_options as dev
from duo.cli import options as opt
from duo.cli import sampling_options as sample
from duo.cli.declare import option

CHECK = "What is checked"

DistributionOpt = Annotated[
    bool,
    option("--distribution", panel=CHECK,
           help="Draw one token with many seeds, and test whether it comes as often as the model says."),
]  # fmt: skip
DrawsOpt = Annotated[
    int, option("--draws", panel=CHECK, metavar="N", min=100, help="With so many seeds, for each prompt.")
]
PromptsOpt = Annotated[
    list[str] | None,
    option("-p", "--prompt", panel=CHECK, metavar="TEXT",
           help="Instead of the built-in prompts; may be repeated."),
]  # fmt: skip
LengthOpt = Annotated[int, option("-n", "--predict", panel=CHECK, metavar="N", min=1, help="Tokens per text.")]


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of `duo check`: those of a run that decide what is written."""

    model: opt.ModelOpt = None
    model_draft: opt.DraftModelOpt = None
    draft: opt.DraftOpt = None
    prompts: PromptsOpt = None
    predict: LengthOpt = 64
    distribution: DistributionOpt = False
    draws: DrawsOpt = 2000
    hf_repo: opt.HfOpt = None
    hf_repo_draft: opt.HfDraftOpt = None
    offline: opt.OfflineOpt = False
    temp: sample.TempOpt = opt.SAMPLING_DEFAULTS.temp
    seed: sample.SeedOpt = 1
    top_k: sample.TopKOpt = opt.SAMPLING_DEFAULTS.top_k
    top_p: sample.TopPOpt = opt.SAMPLING_DEFAULTS.top_p
    min_p: sample.MinPOpt = opt.SAMPLING_DEFAULTS.min_p
    typical: sample.TypicalOpt = opt.SAMPLING_DEFAULTS.typical
    repeat_penalty: sample.RepeatPenaltyOpt = opt.SAMPLING_DEFAULTS.repeat_penalty
    repeat_last_n: sample.RepeatLastNOpt = opt.SAMPLING_DEFAULTS.repeat_last_n
    presence_penalty: sample.PresenceOpt = opt.SAMPLING_DEFAULTS.presence_penalty
    frequency_penalty: sample.FrequencyOpt = opt.SAMPLING_DEFAULTS.frequency_penalty
    logit_bias: sample.BiasOpt = None
    samplers: sample.SamplersOpt = opt.DEFAULT_SAMPLERS
    verify: sample.VerifyOpt = sample.VerifyChoice.COUPLED
    draft_ahead: opt.AheadOpt = None
    schedule: opt.ScheduleOpt = opt.ScheduleChoice.AUTO
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
    flash_attn: opt.FlashAttnOpt = opt.Switch.AUTO
    cache_type_k: opt.CacheTypeKOpt = opt.CacheType.F16
    cache_type_v: opt.CacheTypeVOpt = opt.CacheType.F16
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False

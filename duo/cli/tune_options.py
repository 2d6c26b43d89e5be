"""The options of `duo tune`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

from duo.cli import device_options as dev
from duo.cli import options as opt


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of `duo tune`: those of a run that decide what a decode costs."""

    model: opt.ModelOpt = None
    model_draft: opt.DraftModelOpt = None
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
    flash_attn: opt.FlashAttnOpt = opt.Switch.AUTO
    cache_type_k: opt.CacheTypeKOpt = opt.CacheType.F16
    cache_type_v: opt.CacheTypeVOpt = opt.CacheType.F16
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False

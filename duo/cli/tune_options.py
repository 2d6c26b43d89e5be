"""The options of `duo tune`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

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
    gpu_layers: opt.LayersOpt = opt.AUTO_LAYERS
    gpu_layers_draft: opt.LayersDraftOpt = opt.AUTO_LAYERS
    flash_attn: opt.FlashAttnOpt = opt.Switch.AUTO
    cache_type_k: opt.CacheTypeKOpt = opt.CacheType.F16
    cache_type_v: opt.CacheTypeVOpt = opt.CacheType.F16
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False

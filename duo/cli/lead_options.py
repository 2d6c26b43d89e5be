"""The options of `duo lead`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

from duo.cli import device_options as dev
from duo.cli import options as opt
from duo.cli import sampling_options as sample
from duo.cli import server_options as serve


@dataclass(frozen=True, slots=True)
class LeadOptions:
    """The options of `duo lead`: those of a run, as defaults for requests, and those of a server."""

    model: opt.ModelOpt = None
    model_draft: opt.DraftModelOpt = None
    predict: opt.PredictOpt = -1
    draft: opt.DraftOpt = None
    host: serve.HostOpt = "127.0.0.1"
    port: serve.PortOpt = 5555
    api_key: serve.ApiKeyOpt = None
    api_key_file: serve.ApiKeyFileOpt = None
    queue: serve.QueueOpt = 64
    alias: serve.AliasOpt = None
    print: serve.PrintOpt = serve.PrintChoice.AUTO
    allowed_host: serve.AllowedHostOpt = None
    cors_origin: serve.CorsOpt = None
    back_token: serve.BackTokenOpt = None
    back_token_file: serve.BackTokenFileOpt = None
    hf_repo: opt.HfOpt = None
    hf_repo_draft: opt.HfDraftOpt = None
    offline: opt.OfflineOpt = False
    mlock: opt.MlockOpt = False
    mmap: opt.MmapOpt = True
    reverse_prompt: opt.ReversePromptOpt = None
    ignore_eos: opt.IgnoreEosOpt = False
    temp: sample.TempOpt = opt.SAMPLING_DEFAULTS.temp
    seed: sample.SeedOpt = sample.RANDOM_SEED
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
    grammar: sample.GrammarOpt = None
    grammar_file: sample.GrammarFileOpt = None
    json_schema: sample.SchemaOpt = None
    json_schema_file: sample.SchemaFileOpt = None
    draft_ahead: opt.AheadOpt = None
    schedule: opt.ScheduleOpt = opt.ScheduleChoice.AUTO
    profile: opt.ProfileOpt = True
    exact: opt.ExactOpt = False
    threads: opt.ThreadsOpt = None
    threads_draft: opt.ThreadsDraftOpt = None
    threads_batch: opt.ThreadsBatchOpt = None
    cpu_range: opt.CpuRangeOpt = None
    cpu_range_draft: opt.CpuRangeDraftOpt = None
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
    rpc: dev.RpcOpt = None
    rpc_draft: dev.RpcDraftOpt = None
    rpc_timeout: dev.RpcTimeoutOpt = 8.0
    ctx_size: opt.ContextSizeOpt = 0
    batch_size: opt.BatchOpt = 2048
    ubatch_size: opt.UbatchOpt = 512
    flash_attn: opt.FlashAttnOpt = opt.Switch.AUTO
    cache_type_k: opt.CacheTypeKOpt = opt.CacheType.F16
    cache_type_v: opt.CacheTypeVOpt = opt.CacheType.F16
    color: opt.ColorOpt = opt.Color.AUTO
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False

"""The options that commands share, with llama.cpp's names and environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from duo.cli import device_options as dev
from duo.cli import sampling_options as sample
from duo.cli import server_options as serve
from duo.cli.declare import option
from duo.config import SAMPLERS, SamplingConfig

AUTO_DRAFT = 16  # most candidates, if nothing else is asked for

MAIN = "The six that matter first"
MODELS = "Models"
PROMPT = "Prompt and text"
DRAFTING = "Drafting"
HARDWARE = "Threads"
CONTEXT = "Context"
OUTPUT = "Output"


def parse_auto(value: str | int | None) -> int | None:
    """A number, or None for `auto`."""
    if value in ("auto", None):
        return None
    try:
        return int(str(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is no number and not 'auto'") from None


class Switch(str, Enum):
    """On, off, or as llama.cpp finds best."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


class CacheType(str, Enum):
    """The types of a KV cache that llama.cpp accepts."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"


class ScheduleChoice(str, Enum):
    """How target and draft share the machine."""

    AUTO = "auto"
    ASYNC = "async"
    SYNC = "sync"
    OFF = "off"


class Color(str, Enum):
    """Whether to mark tokens with colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def _show_help(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:  # not while the shell asks for completions
        typer.echo(context.get_help())
        raise typer.Exit


ModelOpt = Annotated[
    Path | None,
    option("-m", "--model", panel=MAIN, metavar="GGUF", env="LLAMA_ARG_MODEL",
            help="The target: the model whose text you want. Without it, a small demo pair."),
]  # fmt: skip
DraftModelOpt = Annotated[
    Path | None,
    option("-md", "--model-draft", "--spec-draft-model", panel=MAIN, metavar="GGUF",
            env=["LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"],
            help="The draft: a small model with the same vocabulary. Without it, plain decoding."),
]  # fmt: skip
PromptOpt = Annotated[str | None, option("-p", "--prompt", panel=MAIN, metavar="TEXT", help="The prompt.")]
FileOpt = Annotated[
    str | None, option("-f", "--file", panel=MAIN, metavar="FILE", help="A file with the prompt; - is stdin.")
]
PredictOpt = Annotated[
    int,
    option("-n", "--predict", "--n-predict", panel=MAIN, metavar="N", env="LLAMA_ARG_N_PREDICT",
            help="Most tokens to generate; -1 is to the end."),
]  # fmt: skip
DraftOpt = Annotated[
    int | None,
    option("--draft", "--draft-max", "--draft-n", "--spec-draft-n-max", panel=MAIN, metavar="N|auto",
            parser=parse_auto, env=["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"], show_default="auto",
            help="Most candidates verified at once; 0 turns drafting off."),
]  # fmt: skip

HfOpt = Annotated[
    str | None,
    option("-hf", "-hfr", "--hf-repo", panel=MODELS, metavar="USER/REPO[:QUANT]", env="LLAMA_ARG_HF_REPO",
            help="The target from Hugging Face (default quantisation Q4_K_M)."),
]  # fmt: skip
HfDraftOpt = Annotated[
    str | None,
    option("-hfd", "-hfrd", "--hf-repo-draft", panel=MODELS, metavar="USER/REPO[:QUANT]",
            env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", help="The draft from Hugging Face."),
]  # fmt: skip
OfflineOpt = Annotated[
    bool, option("--offline", panel=MODELS, env="LLAMA_ARG_OFFLINE", help="Use only what has been fetched before.")
]
MlockOpt = Annotated[
    bool, option("--mlock", panel=MODELS, env="LLAMA_ARG_MLOCK", help="Keep the weights in memory, never swapped.")
]
MmapOpt = Annotated[
    bool,
    option("--mmap/--no-mmap", panel=MODELS, env="LLAMA_ARG_MMAP",
            help="Map the weights from the file, or read them all at the start."),
]  # fmt: skip

ChatOpt = Annotated[bool, option("--chat", panel=PROMPT, help="Put the prompt into the model's own chat template.")]
SystemOpt = Annotated[
    str | None,
    option("-sys", "--system-prompt", panel=PROMPT, metavar="TEXT", help="A system prompt; implies --chat."),
]
EscapeOpt = Annotated[
    bool,
    option("--escape/--no-escape", "-e", panel=PROMPT, help=r"Read \n, \t, \", \\ and \xHH in prompts as escapes."),
]
IgnoreEosOpt = Annotated[bool, option("--ignore-eos", panel=PROMPT, help="Never let the model end its text.")]
ReversePromptOpt = Annotated[
    list[str] | None,
    option("-r", "--reverse-prompt", panel=PROMPT, metavar="TEXT", help="Stop before this text; may be repeated."),
]
DisplayPromptOpt = Annotated[
    bool, option("--display-prompt/--no-display-prompt", panel=PROMPT, help="Write the prompt before the text.")
]

AheadOpt = Annotated[
    int | None,
    option("--draft-ahead", panel=DRAFTING, metavar="N|auto", parser=parse_auto, show_default="auto",
            help="Most tokens that the draft may be ahead of the target."),
]  # fmt: skip
ScheduleOpt = Annotated[
    ScheduleChoice,
    option("--schedule", panel=DRAFTING,
            help="async: both models at once, each with its own threads; sync: in turns, each with all threads; off: "
            "the target alone; auto: whatever is fastest, found while it runs."),
]  # fmt: skip
ProfileOpt = Annotated[
    bool,
    option("--profile/--no-profile", panel=DRAFTING,
            help="Begin with what earlier runs and duo tune have learned about these models on this machine, and keep "
            "what this run learns."),
]  # fmt: skip
ExactOpt = Annotated[
    bool,
    option("--exact", panel=DRAFTING,
            help="Bit-equal logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0), so that "
            "even near-ties come out the same; single tokens cost as much as two."),
]  # fmt: skip

ThreadsOpt = Annotated[
    int | None,
    option("-t", "--threads", panel=HARDWARE, metavar="N", min=1, env="LLAMA_ARG_THREADS", show_default="auto",
            help="Threads of the target."),
]  # fmt: skip
ThreadsDraftOpt = Annotated[
    int | None,
    option("-td", "--threads-draft", panel=HARDWARE, metavar="N", min=1, show_default="auto",
            help="Threads of the draft. With -t, together at most the cores there are."),
]  # fmt: skip
ThreadsBatchOpt = Annotated[
    int | None,
    option("-tb", "--threads-batch", panel=HARDWARE, metavar="N", min=1, show_default="as -t",
            help="Threads of the target for the prompt."),
]  # fmt: skip
CpuRangeOpt = Annotated[
    str | None,
    option(
        "-Cr",
        "--cpu-range",
        panel=HARDWARE,
        metavar="LO-HI",
        help="Cores that the target's threads stay on, and in turns the draft's.",
    ),
]
CpuRangeDraftOpt = Annotated[
    str | None,
    option("-Crd", "--cpu-range-draft", panel=HARDWARE, metavar="LO-HI", help="Cores for a draft beside the target."),
]

ContextSizeOpt = Annotated[
    int,
    option("-c", "--ctx-size", panel=CONTEXT, metavar="N", min=0, env="LLAMA_ARG_CTX_SIZE",
            help="Context in tokens; 0 is what prompt and -n need."),
]  # fmt: skip
BatchOpt = Annotated[
    int,
    option("-b", "--batch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_BATCH",
            help="Most tokens of the prompt decoded in one call."),
]  # fmt: skip
UbatchOpt = Annotated[
    int,
    option("-ub", "--ubatch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_UBATCH",
            help="Most tokens computed at once."),
]  # fmt: skip
FlashAttnOpt = Annotated[
    Switch,
    option("-fa", "--flash-attn", panel=CONTEXT, env="LLAMA_ARG_FLASH_ATTN", help="Flash attention."),
]
CacheTypeKOpt = Annotated[
    CacheType, option("-ctk", "--cache-type-k", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_K",
                 help="Type of the K cache; where there are two models, the target's."),
]  # fmt: skip
CacheTypeVOpt = Annotated[
    CacheType, option("-ctv", "--cache-type-v", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_V",
                 help="Type of the V cache; where there are two models, the target's."),
]  # fmt: skip

ColorOpt = Annotated[
    Color,
    option("--color", panel=OUTPUT, help="Show accepted draft tokens in green and every other step in bold."),
]
LiveOpt = Annotated[
    bool,
    option("--live", panel=OUTPUT,
            help="Show below the text how it goes: rates, how busy both models are, and what the draft has ready."),
]  # fmt: skip
JsonOpt = Annotated[Path | None, option("--json", panel=OUTPUT, metavar="FILE", help="Write all statistics as JSON.")]
TraceOpt = Annotated[
    Path | None,
    option("--trace", panel=OUTPUT, metavar="FILE",
            help="Write what both models did when, as Chrome trace JSON: for Perfetto, or duo trace."),
]  # fmt: skip
VerboseOpt = Annotated[bool, option("-v", "--verbose", panel=OUTPUT, help="Show llama.cpp's log on stderr.")]
LogFileOpt = Annotated[
    Path | None,
    option("--log-file", panel=OUTPUT, metavar="FILE", env="LLAMA_ARG_LOG_FILE", help="Write llama.cpp's log here."),
]
# Typer would show its own --help before everything else.
HelpOpt = Annotated[
    bool, option("-h", "--help", panel=OUTPUT, help="Show this and leave.", is_eager=True, callback=_show_help)
]
VersionOpt = Annotated[bool, option("--version", panel=OUTPUT, help="Show versions and leave.", is_eager=True)]
ListDevicesOpt = Annotated[
    bool, option("--list-devices", panel=OUTPUT, help="Show the devices of this build and leave.", is_eager=True)
]


SAMPLING_DEFAULTS = SamplingConfig()
DEFAULT_SAMPLERS = ";".join(SAMPLERS)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `duo` without a subcommand, in the order of --help."""

    model: ModelOpt = None
    model_draft: DraftModelOpt = None
    prompt: PromptOpt = None
    file: FileOpt = None
    predict: PredictOpt = -1
    draft: DraftOpt = None
    hf_repo: HfOpt = None
    hf_repo_draft: HfDraftOpt = None
    offline: OfflineOpt = False
    mlock: MlockOpt = False
    mmap: MmapOpt = True
    chat: ChatOpt = False
    system_prompt: SystemOpt = None
    escape: EscapeOpt = True
    reverse_prompt: ReversePromptOpt = None
    ignore_eos: IgnoreEosOpt = False
    display_prompt: DisplayPromptOpt = False
    temp: sample.TempOpt = SAMPLING_DEFAULTS.temp
    seed: sample.SeedOpt = sample.RANDOM_SEED
    top_k: sample.TopKOpt = SAMPLING_DEFAULTS.top_k
    top_p: sample.TopPOpt = SAMPLING_DEFAULTS.top_p
    min_p: sample.MinPOpt = SAMPLING_DEFAULTS.min_p
    typical: sample.TypicalOpt = SAMPLING_DEFAULTS.typical
    repeat_penalty: sample.RepeatPenaltyOpt = SAMPLING_DEFAULTS.repeat_penalty
    repeat_last_n: sample.RepeatLastNOpt = SAMPLING_DEFAULTS.repeat_last_n
    presence_penalty: sample.PresenceOpt = SAMPLING_DEFAULTS.presence_penalty
    frequency_penalty: sample.FrequencyOpt = SAMPLING_DEFAULTS.frequency_penalty
    logit_bias: sample.BiasOpt = None
    samplers: sample.SamplersOpt = DEFAULT_SAMPLERS
    grammar: sample.GrammarOpt = None
    grammar_file: sample.GrammarFileOpt = None
    json_schema: sample.SchemaOpt = None
    json_schema_file: sample.SchemaFileOpt = None
    verify: sample.VerifyOpt = sample.VerifyChoice.COUPLED
    draft_ahead: AheadOpt = None
    schedule: ScheduleOpt = ScheduleChoice.AUTO
    profile: ProfileOpt = True
    back_port: serve.BackPortOpt = None
    back_host: serve.BackHostOpt = "127.0.0.1"
    back_token: serve.BackTokenOpt = None
    back_token_file: serve.BackTokenFileOpt = None
    exact: ExactOpt = False
    threads: ThreadsOpt = None
    threads_draft: ThreadsDraftOpt = None
    threads_batch: ThreadsBatchOpt = None
    cpu_range: CpuRangeOpt = None
    cpu_range_draft: CpuRangeDraftOpt = None
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
    ctx_size: ContextSizeOpt = 0
    batch_size: BatchOpt = 2048
    ubatch_size: UbatchOpt = 512
    flash_attn: FlashAttnOpt = Switch.AUTO
    cache_type_k: CacheTypeKOpt = CacheType.F16
    cache_type_v: CacheTypeVOpt = CacheType.F16
    color: ColorOpt = Color.AUTO
    live: LiveOpt = False
    json: JsonOpt = None
    trace: TraceOpt = None
    verbose: VerboseOpt = False
    log_file: LogFileOpt = None
    version: VersionOpt = False
    list_devices: ListDevicesOpt = False
    help: HelpOpt = False

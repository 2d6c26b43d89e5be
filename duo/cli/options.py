"""The options that commands share, with llama.cpp's names and environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.declare import option
from duo.cli.device_options import DeviceOptions, RpcOptions
from duo.cli.sampling_options import GrammarOptions, SamplingOptions, VerifyOption
from duo.cli.server_options import BackPortOptions, BackTokenOptions

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


# fmt: off
# What several commands declare one by one.
DraftOpt = Annotated[int | None, option(
    "--draft", "--draft-max", "--draft-n", "--spec-draft-n-max", panel=MAIN, metavar="N|auto", parser=parse_auto,
    env=["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"], show_default="auto",
    help="Most candidates verified at once; 0 turns drafting off.")]
OfflineOpt = Annotated[bool, option(
    "--offline", panel=MODELS, env="LLAMA_ARG_OFFLINE", help="Use only what has been fetched before.")]
VerboseOpt = Annotated[bool, option("-v", "--verbose", panel=OUTPUT, help="Show llama.cpp's log on stderr.")]
LogFileOpt = Annotated[Path | None, option(
    "--log-file", panel=OUTPUT, metavar="FILE", env="LLAMA_ARG_LOG_FILE", help="Write llama.cpp's log here.")]
# Typer would show its own --help before everything else.
HelpOpt = Annotated[bool, option(
    "-h", "--help", panel=OUTPUT, is_eager=True, callback=_show_help, help="Show this and leave.")]


@dataclass(frozen=True)
class ModelOptions:
    """The models, as files."""

    model: Annotated[Path | None, option(
        "-m", "--model", panel=MAIN, metavar="GGUF", env="LLAMA_ARG_MODEL",
        help="The target: the model whose text you want. Without it, a small demo pair.")] = None
    model_draft: Annotated[Path | None, option(
        "-md", "--model-draft", "--spec-draft-model", panel=MAIN, metavar="GGUF",
        env=["LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"],
        help="The draft: a small model with the same vocabulary. Without it, plain decoding.")] = None


@dataclass(frozen=True)
class HubOptions:
    """The models, on Hugging Face."""

    hf_repo: Annotated[str | None, option(
        "-hf", "-hfr", "--hf-repo", panel=MODELS, metavar="USER/REPO[:QUANT]", env="LLAMA_ARG_HF_REPO",
        help="The target from Hugging Face (default quantisation Q4_K_M).")] = None
    hf_repo_draft: Annotated[str | None, option(
        "-hfd", "-hfrd", "--hf-repo-draft", panel=MODELS, metavar="USER/REPO[:QUANT]",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", help="The draft from Hugging Face.")] = None
    offline: OfflineOpt = False


@dataclass(frozen=True)
class WeightOptions:
    """How the weights get into memory."""

    mlock: Annotated[bool, option(
        "--mlock", panel=MODELS, env="LLAMA_ARG_MLOCK", help="Keep the weights in memory, never swapped.")] = False
    mmap: Annotated[bool, option(
        "--mmap/--no-mmap", panel=MODELS, env="LLAMA_ARG_MMAP",
        help="Map the weights from the file, or read them all at the start.")] = True


@dataclass(frozen=True)
class LimitOptions:
    """How much is written, and how much verified at once."""

    predict: Annotated[int, option(
        "-n", "--predict", "--n-predict", panel=MAIN, metavar="N", env="LLAMA_ARG_N_PREDICT",
        help="Most tokens to generate; -1 is to the end.")] = -1
    draft: DraftOpt = None


@dataclass(frozen=True)
class StopOptions:
    """What ends a text, and what does not."""

    reverse_prompt: Annotated[list[str] | None, option(
        "-r", "--reverse-prompt", panel=PROMPT, metavar="TEXT", help="Stop before this text; may be repeated.")] = None
    ignore_eos: Annotated[bool, option("--ignore-eos", panel=PROMPT, help="Never let the model end its text.")] = False


@dataclass(frozen=True)
class DraftingOptions:
    """How far ahead the draft is, and when it computes."""

    draft_ahead: Annotated[int | None, option(
        "--draft-ahead", panel=DRAFTING, metavar="N|auto", parser=parse_auto, show_default="auto",
        help="Most tokens that the draft may be ahead of the target.")] = None
    schedule: Annotated[ScheduleChoice, option(
        "--schedule", panel=DRAFTING,
        help="async: both models at once, each with its own threads; sync: in turns, each with all threads; off: the "
        "target alone; auto: whatever is fastest, found while it runs.")] = ScheduleChoice.AUTO


@dataclass(frozen=True)
class ProfileOption:
    """What is learned."""

    profile: Annotated[bool, option(
        "--profile/--no-profile", panel=DRAFTING,
        help="Begin with what earlier runs and duo tune have learned about these models on this machine, and keep what "
        "this run learns.")] = True


@dataclass(frozen=True)
class ExactOption:
    """Bit-equal logits."""

    exact: Annotated[bool, option(
        "--exact", panel=DRAFTING,
        help="Bit-equal logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0), so that even "
        "near-ties come out the same; single tokens cost as much as two.")] = False


@dataclass(frozen=True)
class ThreadOptions:
    """How many threads compute a token."""

    threads: Annotated[int | None, option(
        "-t", "--threads", panel=HARDWARE, metavar="N", min=1, env="LLAMA_ARG_THREADS", show_default="auto",
        help="Threads of the target.")] = None
    threads_draft: Annotated[int | None, option(
        "-td", "--threads-draft", panel=HARDWARE, metavar="N", min=1, show_default="auto",
        help="Threads of the draft. With -t, together at most the cores there are.")] = None


@dataclass(frozen=True)
class CoreOptions:
    """How many threads read the prompt, and where all of them are."""

    threads_batch: Annotated[int | None, option(
        "-tb", "--threads-batch", panel=HARDWARE, metavar="N", min=1, show_default="as -t",
        help="Threads of the target for the prompt.")] = None
    cpu_range: Annotated[str | None, option(
        "-Cr", "--cpu-range", panel=HARDWARE, metavar="LO-HI",
        help="Cores that the target's threads stay on, and in turns the draft's.")] = None
    cpu_range_draft: Annotated[str | None, option(
        "-Crd", "--cpu-range-draft", panel=HARDWARE, metavar="LO-HI",
        help="Cores for a draft beside the target.")] = None


@dataclass(frozen=True)
class ContextOption:
    """How long texts may be."""

    ctx_size: Annotated[int, option(
        "-c", "--ctx-size", panel=CONTEXT, metavar="N", min=0, env="LLAMA_ARG_CTX_SIZE",
        help="Context in tokens; 0 is what prompt and -n need.")] = 0


@dataclass(frozen=True)
class BatchOptions:
    """How many tokens are decoded at once."""

    batch_size: Annotated[int, option(
        "-b", "--batch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_BATCH",
        help="Most tokens of the prompt decoded in one call.")] = 2048
    ubatch_size: Annotated[int, option(
        "-ub", "--ubatch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_UBATCH",
        help="Most tokens computed at once.")] = 512


@dataclass(frozen=True)
class CacheOptions:
    """How attention is computed, and from what."""

    flash_attn: Annotated[Switch, option(
        "-fa", "--flash-attn", panel=CONTEXT, env="LLAMA_ARG_FLASH_ATTN", help="Flash attention.")] = Switch.AUTO
    cache_type_k: Annotated[CacheType, option(
        "-ctk", "--cache-type-k", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_K",
        help="Type of the K cache; where there are two models, the target's.")] = CacheType.F16
    cache_type_v: Annotated[CacheType, option(
        "-ctv", "--cache-type-v", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_V",
        help="Type of the V cache; where there are two models, the target's.")] = CacheType.F16


@dataclass(frozen=True)
class ColorOption:
    """How the text is shown."""

    color: Annotated[Color, option(
        "--color", panel=OUTPUT, help="Show accepted draft tokens in green and every other step in bold.")] = Color.AUTO


@dataclass(frozen=True)
class LogOptions:
    """llama.cpp's log."""

    verbose: VerboseOpt = False
    log_file: LogFileOpt = None


@dataclass(frozen=True)
class EngineOptions(
    ModelOptions, HubOptions, WeightOptions, LimitOptions, DraftingOptions, ProfileOption, ExactOption, ThreadOptions,
    CoreOptions, DeviceOptions, RpcOptions, BackPortOptions, BackTokenOptions, ContextOption, BatchOptions,
    CacheOptions, LogOptions,
):
    """All that decides which models are loaded, and how they decode."""


@dataclass(frozen=True)
class GenerationOptions(LimitOptions, StopOptions, SamplingOptions, GrammarOptions, VerifyOption):
    """All that decides how a text is written."""


@dataclass(frozen=True)
class PromptOptions:
    """The prompt of a run."""

    prompt: Annotated[str | None, option("-p", "--prompt", panel=MAIN, metavar="TEXT", help="The prompt.")] = None
    file: Annotated[str | None, option(
        "-f", "--file", panel=MAIN, metavar="FILE", help="A file with the prompt; - is stdin.")] = None


@dataclass(frozen=True)
class TemplateOptions:
    """What becomes of the prompt of a run."""

    chat: Annotated[bool, option(
        "--chat", panel=PROMPT, help="Put the prompt into the model's own chat template.")] = False
    system_prompt: Annotated[str | None, option(
        "-sys", "--system-prompt", panel=PROMPT, metavar="TEXT", help="A system prompt; implies --chat.")] = None
    escape: Annotated[bool, option(
        "--escape/--no-escape", "-e", panel=PROMPT, help=r"Read \n, \t, \", \\ and \xHH in prompts as escapes.")] = True


@dataclass(frozen=True)
class ReportOptions:
    """What a run shows and writes beside the text."""

    live: Annotated[bool, option(
        "--live", panel=OUTPUT,
        help="Show below the text how it goes: rates, how busy both models are, and what the draft has ready.")] = False
    json: Annotated[Path | None, option(
        "--json", panel=OUTPUT, metavar="FILE", help="Write all statistics as JSON.")] = None
    trace: Annotated[Path | None, option(
        "--trace", panel=OUTPUT, metavar="FILE",
        help="Write what both models did when, as Chrome trace JSON: for Perfetto, or duo trace.")] = None


@dataclass(frozen=True)
class RunOptions(EngineOptions, GenerationOptions, PromptOptions, TemplateOptions, ColorOption, ReportOptions):
    """The options of `duo` without a subcommand."""

    offers = (
        ModelOptions, PromptOptions, LimitOptions, HubOptions, WeightOptions, TemplateOptions, StopOptions,
        SamplingOptions, GrammarOptions, VerifyOption, DraftingOptions, ProfileOption, BackPortOptions,
        BackTokenOptions, ExactOption, ThreadOptions, CoreOptions, DeviceOptions, RpcOptions, ContextOption,
        BatchOptions, CacheOptions, ColorOption, ReportOptions, LogOptions,
    )
    display_prompt: Annotated[bool, option(
        "--display-prompt/--no-display-prompt", panel=PROMPT, help="Write the prompt before the text.")] = False
    version: Annotated[bool, option("--version", panel=OUTPUT, help="Show versions and leave.", is_eager=True)] = False
    list_devices: Annotated[bool, option(
        "--list-devices", panel=OUTPUT, is_eager=True, help="Show the devices of this build and leave.")] = False
    help: HelpOpt = False

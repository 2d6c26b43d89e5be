"""The options of `duo` without a subcommand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from duo.cli.options.context import BatchOptions, CacheOptions, ContextOption, WarmupOption
from duo.cli.options.declare import MAIN, OUTPUT, PROMPT, option, show_help
from duo.cli.options.devices import DeviceOptions, RpcOptions
from duo.cli.options.drafting import DraftingOptions, ExactOption, ProfileOption
from duo.cli.options.engine import EngineOptions, GenerationOptions
from duo.cli.options.model import HubOptions, ModelOptions, WeightOptions
from duo.cli.options.output import ColorOption, LogOptions, ReportOptions
from duo.cli.options.prompt import LimitOptions, PromptOptions, StopOptions, TemplateOptions
from duo.cli.options.sampling import GrammarOptions, SamplingOptions, VerifyOption
from duo.cli.options.server import BackPortOptions, BackTokenOptions
from duo.cli.options.threads import CoreOptions, ThreadOptions

_ESSENTIAL = (
    "model", "model_draft", "hf_repo", "hf_repo_draft", "prompt", "file", "predict", "chat", "temp", "draft",
    "gpu_layers", "gpu_layers_draft", "verbose", "help", "help_all",
)  # fmt: skip


def _show_essential(context: typer.Context, value: bool) -> None:
    """Callback of --help: the main options only."""
    for parameter in context.command.params if value else ():
        parameter.hidden = parameter.name not in _ESSENTIAL  # type: ignore[attr-defined]
        parameter.rich_help_panel = MAIN  # type: ignore[attr-defined]
    show_help(context, value)


# fmt: off
@dataclass(frozen=True)
class DisplayOption:
    """Whether the prompt is printed."""

    display_prompt: Annotated[bool, option(
        "--display-prompt/--no-display-prompt", panel=PROMPT, help="Print the prompt before the text.")] = False


@dataclass(frozen=True)
class RunOptions(
    EngineOptions, GenerationOptions, PromptOptions, TemplateOptions, DisplayOption, ColorOption, ReportOptions
):
    """The options of `duo` without a subcommand."""

    offers: ClassVar[tuple[type, ...]] = (
        ModelOptions, PromptOptions, LimitOptions, HubOptions, WeightOptions, TemplateOptions, StopOptions,
        DisplayOption, SamplingOptions, GrammarOptions, VerifyOption, DraftingOptions, ProfileOption, BackPortOptions,
        BackTokenOptions, ExactOption, ThreadOptions, CoreOptions, DeviceOptions, RpcOptions, ContextOption,
        BatchOptions, CacheOptions, WarmupOption, ColorOption, ReportOptions, LogOptions,
    )
    conversation: Annotated[bool | None, option(
        "-cnv/-no-cnv", "--conversation/--no-conversation", "-i", "--interactive", panel=PROMPT,
        help="Chat on the terminal, as duo chat does; -p or -f is the first message.")] = None
    single_turn: Annotated[bool, option(
        "-st", "--single-turn", panel=PROMPT, help="One answer in the chat template, then exit: as --chat.")] = False
    version: Annotated[bool, option(
        "--version", panel=OUTPUT, is_eager=True,
        help="Show versions and exit; with -v, also the licence and third-party notices.")] = False
    list_devices: Annotated[bool, option(
        "--list-devices", panel=OUTPUT, is_eager=True, help="List the available devices and exit.")] = False
    help: Annotated[bool, option(
        "-h", "--help", panel=OUTPUT, is_eager=True, callback=_show_essential, help="Show the main options and exit.",
    )] = False
    help_all: Annotated[bool, option(
        "--help-all", panel=OUTPUT, is_eager=True, callback=show_help, help="Show all options and exit.")] = False

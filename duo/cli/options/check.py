"""The options of `duo check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duo.cli.options.context import CacheOptions, WarmupOption
from duo.cli.options.declare import MAIN, HelpOpt, option
from duo.cli.options.devices import DeviceOptions
from duo.cli.options.drafting import DraftingOptions, DraftOpt, ExactOption
from duo.cli.options.engine import EngineOptions, GenerationOptions
from duo.cli.options.model import HubOptions, ModelOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.sampling import SamplingOptions, VerifyOption
from duo.cli.options.threads import ThreadOptions


# fmt: off
@dataclass(frozen=True)
class CheckedOptions:
    """What is checked."""

    draft: DraftOpt = None
    prompts: Annotated[list[str] | None, option(
        "-p", "--prompt", panel=MAIN, metavar="TEXT",
        help="Prompt to use instead of the built-in ones; may be repeated.")] = None
    predict: Annotated[int, option(
        "-n", "--predict", panel=MAIN, metavar="N", min=1, help="Number of tokens to generate per prompt.")] = 64


@dataclass(frozen=True)
class CheckOptions(CheckedOptions, EngineOptions, GenerationOptions):
    """The options of `duo check`: those of a run that decide what is written."""

    offers = (
        ModelOptions, CheckedOptions, HubOptions, SamplingOptions, VerifyOption, DraftingOptions,
        ExactOption, DeviceOptions, ThreadOptions, CacheOptions, WarmupOption, LogOptions,
    )
    seed: int = 1
    profile: bool = False
    help: HelpOpt = False

"""The options of `duo check`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from duo.cli.options import declare
from duo.cli.options.context import CacheOptions
from duo.cli.options.declare import HelpOpt
from duo.cli.options.devices import DeviceOptions
from duo.cli.options.drafting import DraftingOptions, DraftOpt, ExactOption
from duo.cli.options.engine import EngineOptions, GenerationOptions
from duo.cli.options.model import HubOptions, ModelOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.sampling import SamplingOptions, VerifyOption
from duo.cli.options.threads import ThreadOptions

CHECK = "What is checked"
option = partial(declare.option, panel=CHECK)


# fmt: off
@dataclass(frozen=True)
class CheckedOptions:
    """What is checked."""

    draft: DraftOpt = None
    prompts: Annotated[list[str] | None, option(
        "-p", "--prompt", metavar="TEXT", help="Instead of the built-in prompts; may be repeated.")] = None
    predict: Annotated[int, option("-n", "--predict", metavar="N", min=1, help="Tokens per text.")] = 64


@dataclass(frozen=True)
class CheckOptions(CheckedOptions, EngineOptions, GenerationOptions):
    """The options of `duo check`: those of a run that decide what is written."""

    offers = (
        ModelOptions, CheckedOptions, HubOptions, SamplingOptions, VerifyOption, DraftingOptions,
        ExactOption, DeviceOptions, ThreadOptions, CacheOptions, LogOptions,
    )
    seed: int = 1
    profile: bool = False
    help: HelpOpt = False

"""The options of `duo check`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from duo.cli import declare
from duo.cli import options as opt
from duo.cli.device_options import DeviceOptions
from duo.cli.sampling_options import SamplingOptions, VerifyOption

CHECK = "What is checked"
option = partial(declare.option, panel=CHECK)


# fmt: off
@dataclass(frozen=True)
class CheckedOptions:
    """What is checked."""

    draft: opt.DraftOpt = None
    prompts: Annotated[list[str] | None, option(
        "-p", "--prompt", metavar="TEXT", help="Instead of the built-in prompts; may be repeated.")] = None
    predict: Annotated[int, option("-n", "--predict", metavar="N", min=1, help="Tokens per text.")] = 64


@dataclass(frozen=True)
class CheckOptions(CheckedOptions, opt.EngineOptions, opt.GenerationOptions):
    """The options of `duo check`: those of a run that decide what is written."""

    offers = (
        opt.ModelOptions, CheckedOptions, opt.HubOptions, SamplingOptions, VerifyOption, opt.DraftingOptions,
        opt.ExactOption, DeviceOptions, opt.ThreadOptions, opt.CacheOptions, opt.LogOptions,
    )
    seed: int = 1
    profile: bool = False
    help: opt.HelpOpt = False

"""The options of `duo tune`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.options.context import CacheOptions, WarmupOption
from duo.cli.options.declare import MAIN, OUTPUT, HelpOpt, option
from duo.cli.options.devices import DeviceOptions
from duo.cli.options.drafting import ExactOption
from duo.cli.options.engine import EngineOptions
from duo.cli.options.model import HubOptions, ModelOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.threads import ThreadOptions


# fmt: off
@dataclass(frozen=True)
class TunedOptions:
    """What is measured, or what becomes of the results."""

    names: Annotated[list[str] | None, typer.Argument(
        metavar="DRAFT|NAME", show_default=False,
        help="Without a draft (-md): drafts to compare besides those in the caches of duo and Hugging Face, files or "
        "all in a folder. With --list or --reset: names of results.")] = None
    lists: Annotated[bool, option(
        "--list", panel=MAIN, help="List the results of this machine, or show those of these names in full.")] = False
    reset: Annotated[bool, option(
        "--reset", panel=MAIN, help="Forget the results of these names, or all for the name all.")] = False
    prompts: Annotated[list[str] | None, option(
        "-p", "--prompt", panel=MAIN, metavar="TEXT",
        help="Prompt to use instead of the built-in ones, such as a typical task of yours; may be repeated.")] = None
    predict: Annotated[int, option(
        "-n", "--predict", panel=MAIN, metavar="N", min=8, help="Number of tokens to generate per prompt.")] = 64
    raw: Annotated[bool, option(
        "--raw", panel=MAIN, help="Use the prompts without the model's chat template.")] = False


@dataclass(frozen=True)
class TuneOptions(TunedOptions, EngineOptions):
    """The options of `duo tune`: those of a run that decide what a decode costs."""

    offers = (
        ModelOptions, TunedOptions, HubOptions, ExactOption, DeviceOptions, ThreadOptions, CacheOptions,
        WarmupOption, LogOptions,
    )
    json: Annotated[Path | None, option(
        "--json", panel=OUTPUT, metavar="FILE", help="Write all figures to a file, as JSON.")] = None
    help: HelpOpt = False

"""The options of `duo suggest`."""

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
class ComparedOptions:
    """Which drafts are compared, and on what."""

    drafts: Annotated[list[Path] | None, typer.Argument(
        metavar="GGUF|FOLDER", show_default=False,
        help="Drafts to compare besides those in the caches of duo and Hugging Face: files, or all in a folder.",
    )] = None
    prompts: Annotated[list[str] | None, option(
        "-p", "--prompt", panel=MAIN, metavar="TEXT",
        help="Prompt to use instead of the built-in ones, such as a typical task of yours; may be repeated.")] = None
    predict: Annotated[int, option(
        "-n", "--predict", panel=MAIN, metavar="N", min=8, help="Number of tokens to generate per prompt.")] = 64
    raw: Annotated[bool, option(
        "--raw", panel=MAIN, help="Use the prompts without the model's chat template.")] = False


@dataclass(frozen=True)
class SuggestOptions(ComparedOptions, EngineOptions):
    """The options of `duo suggest`: those of a run that decide what a decode costs."""

    offers = (
        ModelOptions, ComparedOptions, HubOptions, ExactOption, DeviceOptions, ThreadOptions, CacheOptions,
        WarmupOption, LogOptions,
    )
    json: Annotated[Path | None, option(
        "--json", panel=OUTPUT, metavar="FILE", help="Write all figures to a file, as JSON.")] = None
    help: HelpOpt = False

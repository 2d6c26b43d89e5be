"""The options of `duo bench`. This does not import llama.cpp, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from duo.cli.options import declare
from duo.cli.options.context import CacheOptions, ContextOption, WarmupOption
from duo.cli.options.declare import OUTPUT, HelpOpt
from duo.cli.options.devices import DeviceOptions
from duo.cli.options.drafting import ExactOption
from duo.cli.options.engine import EngineOptions
from duo.cli.options.model import HubOptions, ModelOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.threads import ThreadOptions

BENCH = "What is measured"
_MAX_ROUNDS = 1000
option = partial(declare.option, panel=BENCH)


Format = Literal["md", "json"]


# fmt: off
@dataclass(frozen=True)
class MeasuredOptions:
    """What is measured."""

    modes: Annotated[str | None, option(
        "--modes", metavar="LIST", show_default="plain,sync,async,auto",
        help="Modes to measure. plain or off: the target alone; lookup: with candidates from the text itself; sync: "
        "sequential drafting; async: concurrent drafting; auto: the schedule that duo chooses, and lookup.")] = None
    limits: Annotated[str, option(
        "--draft", "--draft-max", "--spec-draft-n-max", metavar="LIST",
        help="Maximum number of candidates per batch: numbers and auto, such as 2,4,8,auto. Each is measured.",
    )] = "auto"
    predict: Annotated[int, option("-n", "--predict", metavar="N", min=2, help="Number of tokens per text.")] = 256
    repetitions: Annotated[int, option(
        "-r", "--repetitions", metavar="N", min=1, max=_MAX_ROUNDS,
        help="Number of rounds. Each measures every mode and program once, on a prompt of the next category.")] = 5
    prompts: Annotated[str | None, option(
        "--prompts", metavar="FILE", show_default="built in",
        help=r"File with one prompt per line (\n: line break); a line \[name] starts a category.")] = None
    categories: Annotated[str | None, option(
        "--categories", metavar="LIST", show_default="all",
        help="Categories of prompts to use. Built in: chat, code, story, summary, translation, list, JSON, "
        "reasoning.")] = None
    raw: Annotated[bool, option("--raw", help="Use the prompts without the model's chat template.")] = False
    peers: Annotated[str | None, option(
        "--peers", metavar="NAME=PATH,…", show_default="those on the PATH",
        help="Programs to compare with: llama-completion, llama-cli, llama-speculative-simple; or none.")] = None


@dataclass(frozen=True)
class ResultOptions:
    """Output of the results."""

    output: Annotated[Format, option(
        "-o", "--output", panel=OUTPUT, help="Output format. md: a table; json: also every run.")] = "md"


@dataclass(frozen=True)
class BenchOptions(MeasuredOptions, EngineOptions, ResultOptions):
    """The options of `duo bench`: what is measured, and the options of a run that affect the cost of a decode."""

    offers = (
        ModelOptions, MeasuredOptions, HubOptions, ExactOption, DeviceOptions, ThreadOptions,
        ContextOption, CacheOptions, WarmupOption, ResultOptions, LogOptions,
    )
    profile: bool = False
    help: HelpOpt = False

"""The options of `duo bench`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

from duo.cli.options import declare
from duo.cli.options.context import CacheOptions, ContextOption
from duo.cli.options.declare import OUTPUT, HelpOpt
from duo.cli.options.devices import DeviceOptions
from duo.cli.options.drafting import ExactOption
from duo.cli.options.engine import EngineOptions
from duo.cli.options.model import HubOptions, ModelOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.threads import ThreadOptions

BENCH = "What is measured"
option = partial(declare.option, panel=BENCH)


class Format(str, Enum):
    """How the results are written."""

    MD = "md"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


# fmt: off
@dataclass(frozen=True)
class MeasuredOptions:
    """What is measured."""

    modes: Annotated[str | None, option(
        "--modes", metavar="LIST", show_default="plain,sync,async,auto",
        help="plain: the target alone; sync: in turns; async: both at once; auto: whatever duo finds fastest; remote: "
        "async, with duo back in a process of its own.")] = None
    limits: Annotated[str, option(
        "--draft", "--draft-max", "--spec-draft-n-max", metavar="LIST",
        help="Most candidates verified at once: numbers and auto, such as 2,4,8,auto. Each is a run of its own.",
    )] = "auto"
    predict: Annotated[int, option("-n", "--predict", metavar="N", min=2, help="Tokens per text.")] = 256
    repetitions: Annotated[int, option(
        "-r", "--repetitions", metavar="N", min=1,
        help="Rounds. In each everybody writes once, after a prompt of the next category.")] = 5
    prompts: Annotated[str | None, option(
        "--prompts", metavar="FILE", show_default="built in",
        help=r"A file with a prompt in each line (\n is a line break); \[name] alone begins a category.")] = None
    categories: Annotated[str | None, option(
        "--categories", metavar="LIST", show_default="all",
        help="Only these. Built in: chat, code, story, summary, translation, list, JSON, reasoning.")] = None
    raw: Annotated[bool, option("--raw", help="Leave the prompts out of the model's chat template.")] = False
    peers: Annotated[str | None, option(
        "--peers", metavar="NAME=PATH,…", show_default="those on the PATH",
        help="Programs to measure beside it: llama-completion, llama-cli, llama-speculative-simple, llama-server; none "
        "for none.")] = None


@dataclass(frozen=True)
class ResultOptions:
    """How the results are written."""

    output: Annotated[Format, option(
        "-o", "--output", panel=OUTPUT, help="md and csv: tables; json and jsonl: every run too.")] = Format.MD
    plot: Annotated[Path | None, option(
        "--plot", panel=OUTPUT, metavar="FILE",
        help=r"Draw the results, as .svg or .png (needs duo-llm\[bench]).")] = None


@dataclass(frozen=True)
class BenchOptions(MeasuredOptions, EngineOptions, ResultOptions):
    """The options of `duo bench`: what is measured, and those of a run that decide what a decode costs."""

    offers = (
        ModelOptions, MeasuredOptions, HubOptions, ExactOption, DeviceOptions, ThreadOptions,
        ContextOption, CacheOptions, ResultOptions, LogOptions,
    )
    profile: bool = False
    help: HelpOpt = False

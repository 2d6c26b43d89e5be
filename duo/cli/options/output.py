"""Colours, logs, statistics and traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from duo.cli.options.declare import OUTPUT, option

Color = Literal["auto", "always", "never"]


# fmt: off
VerboseOpt = Annotated[bool, option(
    "-v", "--verbose", panel=OUTPUT, help="Print more on stderr: all statistics, and llama.cpp's log.")]
LogFileOpt = Annotated[Path | None, option(
    "--log-file", panel=OUTPUT, metavar="FILE", env="LLAMA_ARG_LOG_FILE", help="Write all log messages to a file.")]


@dataclass(frozen=True)
class ColorOption:
    """Colours."""

    color: Annotated[Color, option(
        "--color", panel=OUTPUT,
        help="Show accepted tokens in green (of the draft) or cyan (of the lookup), and every other step in "
        "bold.")] = "auto"


@dataclass(frozen=True)
class LogOptions:
    """Logs."""

    verbose: VerboseOpt = False
    log_file: LogFileOpt = None


@dataclass(frozen=True)
class ReportOptions:
    """What a run reports besides its text."""

    live: Annotated[bool, option(
        "--live", panel=OUTPUT,
        help="Show a status below the text: rates, load of both models, candidates ahead.")] = False
    json: Annotated[Path | None, option(
        "--json", panel=OUTPUT, metavar="FILE", help="Write all statistics to a file, as JSON.")] = None
    trace: Annotated[Path | None, option(
        "--trace", panel=OUTPUT, metavar="FILE",
        help="Write a timeline of both models as Chrome trace JSON, which Perfetto opens.")] = None

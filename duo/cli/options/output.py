"""What is shown and written beside the text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from duo.cli.options.declare import OUTPUT, option


class Color(str, Enum):
    """Whether to mark tokens with colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


# fmt: off
VerboseOpt = Annotated[bool, option("-v", "--verbose", panel=OUTPUT, help="Show llama.cpp's log on stderr.")]
LogFileOpt = Annotated[Path | None, option(
    "--log-file", panel=OUTPUT, metavar="FILE", env="LLAMA_ARG_LOG_FILE", help="Write llama.cpp's log here.")]


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

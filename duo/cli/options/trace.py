"""The options of `duo trace`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.options.declare import HelpOpt


# fmt: off
@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of `duo trace`."""

    file: Annotated[Path, typer.Argument(
        metavar="FILE", help="File written by duo --trace.", show_default=False)]
    start: Annotated[float | None, typer.Option(
        "--from", metavar="SECONDS", show_default="the first token",
        help="Ignore everything before this time since the start of the trace.")] = None
    end: Annotated[float | None, typer.Option(
        "--to", metavar="SECONDS", show_default="the end", help="Ignore everything after this time.")] = None
    picture: Annotated[Path | None, typer.Option(
        "--plot", metavar="FILE",
        help="Plot the timeline to a .svg or .png file: one second of it, unless --from or --to is given.")] = None
    help: HelpOpt = False

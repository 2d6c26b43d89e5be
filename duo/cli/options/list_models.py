"""The options of `duo list`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.options.declare import HelpOpt


# fmt: off
@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of `duo list`."""

    paths: Annotated[list[Path] | None, typer.Argument(
        metavar="FILE|FOLDER", help="More GGUF files, or folders that contain some.", show_default=False)] = None
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    help: HelpOpt = False

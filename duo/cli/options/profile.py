"""The options of `duo profile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from duo.cli.options.declare import HelpOpt


# fmt: off
@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The options of `duo profile`."""

    action: Annotated[str, typer.Argument(
        metavar="list|show|reset", help="list: all profiles; show: one in full; reset: forget what was learned.",
        show_default=False)] = "list"
    names: Annotated[list[str] | None, typer.Argument(
        metavar="NAME", help="Names as in the list; a part that only one has is enough.",
        show_default=False)] = None
    all: Annotated[bool, typer.Option("--all", help="reset: every profile.")] = False
    help: HelpOpt = False

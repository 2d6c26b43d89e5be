"""The options of `duo doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from duo.cli.options.declare import HelpOpt


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of `duo doctor`."""

    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    help: HelpOpt = False

"""The options of `duo doctor`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from duo.cli.options import HelpOpt


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of `duo doctor`."""

    json: Annotated[bool, typer.Option("--json", help="Write what was found as JSON to stdout.")] = False
    help: HelpOpt = False

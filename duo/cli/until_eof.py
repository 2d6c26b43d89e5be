"""For a process that another duo has started: it ends when that does."""

from __future__ import annotations

from typing import Annotated

import typer

UntilEofOpt = Annotated[bool, typer.Option("--until-eof", hidden=True, help="End at once when standard input does.")]

"""For a process that another duo has started: it ends when that does."""

from __future__ import annotations

import os
import threading
from typing import Annotated

import typer

UntilEofOpt = Annotated[bool, typer.Option("--until-eof", hidden=True, help="End at once when standard input does.")]


def end_with_stdin() -> None:
    """From now on, end at once when standard input does: nothing here is worth keeping then."""
    threading.Thread(target=_wait, name="duo-stdin", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):  # not sys.stdin, which Python could not close at its own end
        pass
    os._exit(0)

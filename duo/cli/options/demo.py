"""The options of `duo demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli.options.declare import MAIN, HelpOpt, option
from duo.cli.options.prompt import PromptOptions
from duo.cli.options.run import RunOptions
from duo.config import DEMO


# fmt: off
@dataclass(frozen=True)
class DemoOptions(RunOptions):
    """The options of `duo demo`: `duo -m demo` has all others."""

    offers = (PromptOptions,)
    model: Path | None = Path(DEMO)
    predict: Annotated[int, option(
        "-n", "--predict", "--n-predict", panel=MAIN, metavar="N",
        help="Maximum number of tokens to generate; -1: until the end of the text.")] = 256
    help: HelpOpt = False

"""The options of `duo demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from duo.cli.options.declare import HelpOpt
from duo.cli.options.model import HubOptions, ModelOptions, OfflineOpt
from duo.cli.options.run import RunOptions
from duo.config import DEMO


@dataclass(frozen=True)
class DemoOptions(RunOptions):
    """The options of a run, without those that name models."""

    offers = tuple(group for group in RunOptions.offers if group not in (ModelOptions, HubOptions))
    model: Path | None = Path(DEMO)
    predict: int = 256
    offline: OfflineOpt = False
    help: HelpOpt = False

"""The options of `duo tune`."""

from __future__ import annotations

from dataclasses import dataclass

from duo.cli.options.context import CacheOptions, WarmupOption
from duo.cli.options.declare import HelpOpt
from duo.cli.options.devices import DeviceOptions
from duo.cli.options.drafting import ExactOption
from duo.cli.options.engine import EngineOptions
from duo.cli.options.model import HubOptions, ModelOptions
from duo.cli.options.output import LogOptions


@dataclass(frozen=True)
class TuneOptions(EngineOptions):
    """The options of `duo tune`: those of a run that decide what a decode costs."""

    offers = (
        ModelOptions, HubOptions, ExactOption, DeviceOptions, CacheOptions, WarmupOption, LogOptions,
    )  # fmt: skip
    ctx_size: int = 256  # enough for what is measured
    help: HelpOpt = False

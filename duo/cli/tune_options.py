"""The options of `duo tune`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

from duo.cli import options as opt
from duo.cli.device_options import DeviceOptions


@dataclass(frozen=True)
class TuneOptions(opt.EngineOptions):
    """The options of `duo tune`: those of a run that decide what a decode costs."""

    offers = (
        opt.ModelOptions, opt.HubOptions, opt.ExactOption, DeviceOptions, opt.CacheOptions, opt.LogOptions,
    )  # fmt: skip
    ctx_size: int = 256  # enough for what is measured
    help: opt.HelpOpt = False

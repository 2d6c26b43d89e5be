"""The options of `duo lead`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

from duo.cli import options as opt
from duo.cli.device_options import DeviceOptions, RpcOptions
from duo.cli.sampling_options import GrammarOptions, SamplingOptions
from duo.cli.server_options import BackTokenOptions, ServerOptions


@dataclass(frozen=True)
class LeadOptions(opt.EngineOptions, opt.GenerationOptions, ServerOptions, opt.ColorOption):
    """The options of `duo lead`: those of a run, as defaults for requests, and those of a server."""

    offers = (
        opt.ModelOptions, opt.LimitOptions, ServerOptions, BackTokenOptions, opt.HubOptions, opt.WeightOptions,
        opt.StopOptions, SamplingOptions, GrammarOptions, opt.DraftingOptions, opt.ProfileOption, opt.ExactOption,
        opt.ThreadOptions, opt.CoreOptions, DeviceOptions, RpcOptions, opt.ContextOption, opt.BatchOptions,
        opt.CacheOptions, opt.ColorOption, opt.LogOptions,
    )  # fmt: skip
    help: opt.HelpOpt = False

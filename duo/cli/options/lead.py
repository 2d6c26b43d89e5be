"""The options of `duo lead`."""

from __future__ import annotations

from dataclasses import dataclass

from duo.cli.options.context import BatchOptions, CacheOptions, ContextOption, WarmupOption
from duo.cli.options.declare import HelpOpt
from duo.cli.options.devices import DeviceOptions, RpcOptions
from duo.cli.options.drafting import DraftingOptions, ExactOption, ProfileOption
from duo.cli.options.engine import EngineOptions, GenerationOptions
from duo.cli.options.model import HubOptions, ModelOptions, WeightOptions
from duo.cli.options.output import ColorOption, LogOptions
from duo.cli.options.prompt import LimitOptions, StopOptions
from duo.cli.options.sampling import GrammarOptions, SamplingOptions
from duo.cli.options.server import BackTokenOptions, ServerOptions
from duo.cli.options.threads import CoreOptions, ThreadOptions


@dataclass(frozen=True)
class LeadOptions(EngineOptions, GenerationOptions, ServerOptions, ColorOption):
    """The options of `duo lead`: those of a server, and those of a run as defaults for requests."""

    offers = (
        ModelOptions, LimitOptions, ServerOptions, BackTokenOptions, HubOptions, WeightOptions,
        StopOptions, SamplingOptions, GrammarOptions, DraftingOptions, ProfileOption, ExactOption,
        ThreadOptions, CoreOptions, DeviceOptions, RpcOptions, ContextOption, BatchOptions,
        CacheOptions, WarmupOption, ColorOption, LogOptions,
    )  # fmt: skip
    help: HelpOpt = False

"""Speculative decoding on llama.cpp with target and draft running concurrently: see docs/python.md."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, whose import takes milliseconds: see duo/cli/main.py

if TYPE_CHECKING:
    from duo.engine.engine import Engine as Engine
    from duo.engine.statistics import BranchStatistics as BranchStatistics
    from duo.engine.statistics import DraftStatistics as DraftStatistics
    from duo.engine.statistics import GenerationStatistics as GenerationStatistics
    from duo.engine.statistics import LookupStatistics as LookupStatistics
    from duo.engine.statistics import PromptStatistics as PromptStatistics
    from duo.engine.statistics import Statistics as Statistics
    from duo.engine.stream import Completion as Completion
    from duo.engine.stream import Stream as Stream
    from duo.errors import *  # noqa: F403
    from duo.loading import load as load
    from duo.server.lead_server import Lead as Lead
    from duo.speculation.types import Source as Source
    from duo.speculation.types import Step as Step
    from duo.speculation.types import TokenLogprobs as TokenLogprobs

# The module of each public name, imported on first access so that `duo --help` does not load llama.cpp.
_MODULES = {
    "duo.engine.engine": "Engine",
    "duo.engine.statistics": "BranchStatistics DraftStatistics GenerationStatistics LookupStatistics PromptStatistics "
    "Statistics",
    "duo.engine.stream": "Completion Stream",
    "duo.errors": "BusyError ClosedError DecodeError DeviceError DownloadError DuoError MemoryLimitError ModelError "
    "PromptError UsageError",
    "duo.loading": "load",
    "duo.server.lead_server": "Lead",
    "duo.speculation.types": "Source Step TokenLogprobs",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - pinned by a test

if not TYPE_CHECKING:  # a type checker would accept any attribute of the module

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'duo' has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - see duo/cli/main.py

        return getattr(import_module(_MODULE_OF[name]), name)

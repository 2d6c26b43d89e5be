"""Speculative decoding with both models running at the same time, on llama.cpp: see docs/python.md."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from duo.engine.engine import Engine as Engine
    from duo.engine.metrics import DraftStatistics as DraftStatistics
    from duo.engine.metrics import GenerationStatistics as GenerationStatistics
    from duo.engine.metrics import PromptStatistics as PromptStatistics
    from duo.engine.metrics import Statistics as Statistics
    from duo.engine.stream import Completion as Completion
    from duo.engine.stream import Stream as Stream
    from duo.errors import *  # noqa: F403
    from duo.loading import load as load
    from duo.server.lead import Lead as Lead
    from duo.spec.types import Step as Step

# Where each name comes from: imported when it is asked for, so that `duo --help` does not wait for llama.cpp.
_HOMES = {
    "duo.engine.engine": "Engine",
    "duo.engine.metrics": "DraftStatistics GenerationStatistics PromptStatistics Statistics",
    "duo.engine.stream": "Completion Stream",
    "duo.errors": "BusyError ClosedError DecodeError DeviceError DownloadError DuoError MemoryLimitError ModelError "
    "PromptError UsageError VocabularyError",
    "duo.loading": "load",
    "duo.server.lead": "Lead",
    "duo.spec.types": "Step",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - pinned by a test

# What is worth knowing goes to this logger; a program that does not care sees nothing of it.
logging.getLogger("duo").addHandler(logging.NullHandler())


if not TYPE_CHECKING:  # which would take any name for one of duo's

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'duo' has no attribute {name!r}")
        return getattr(import_module(_HOME_OF[name]), name)

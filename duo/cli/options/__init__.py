"""The options of all commands, in groups that build their own configs; each is written once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "back", "bench", "chat", "check", "demo", "doctor", "lead", "list_models", "plan", "rpc_server", "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from duo.cli.options import (
        back,
        bench,
        chat,
        check,
        demo,
        doctor,
        lead,
        list_models,
        plan,
        rpc_server,
        tune,
    )
else:

    def __getattr__(name: str) -> object:
        """Import the options of a command on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")

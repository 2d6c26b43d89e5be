"""One file per command: it reads its options, calls one module below `cli/` and prints the result."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "back", "bench", "chat", "check", "doctor", "lead", "list_models", "plan", "rpc_server", "run",
    "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from duo.cli.commands import (
        back,
        bench,
        chat,
        check,
        doctor,
        lead,
        list_models,
        plan,
        rpc_server,
        run,
        tune,
    )
else:

    def __getattr__(name: str) -> object:
        """Import a command on first use, so that --help and usage errors do not wait for llama.cpp."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")

"""Child: the command line of a process that runs a function of duo."""

from __future__ import annotations

import sys
from types import ModuleType

from duo.errors import BusyError

CALL = "--call"  # the first argument of the program in an archive, which runs as many programs: archive/start.py


def is_frozen() -> bool:
    """Whether this duo is from an archive (`make archive`), where sys.executable is duo and not Python."""
    return bool(getattr(sys, "frozen", False))


def python(*options: str) -> list[str]:
    """Python, with these options. Raises BusyError if this process does not know where it is."""
    if not sys.executable:
        raise BusyError("no other process can be started: it is not known where Python is")
    return [sys.executable, *options]


def call(module: str, *arguments: str, function: str = "main") -> list[str]:
    """The command line that calls a function of a module with `arguments`. Raises BusyError.

    Unlike `python -m`, it imports nothing from the current directory.
    """
    if is_frozen():
        return python(CALL, f"{module}:{function}", *arguments)
    code = (
        f"import sys; sys.path = list(filter(None, sys.path)); from {module} import {function}; sys.exit({function}())"
    )
    return python("-c", code, *arguments)


def script(module: ModuleType, *arguments: str) -> list[str]:
    """The same for `main()` of a module that imports only the standard library: it starts faster. Raises BusyError."""
    if is_frozen():
        return call(module.__name__, *arguments)
    assert module.__file__ is not None
    return python("-I", "-S", module.__file__, *arguments)

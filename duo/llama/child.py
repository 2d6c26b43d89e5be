"""Child: the command line of a process that runs a function of duo."""

from __future__ import annotations

import sys

from duo.errors import BusyError


def python(*options: str) -> list[str]:
    """Python, with these options. Raises BusyError if this process does not know where it is."""
    if not sys.executable:
        raise BusyError("no other process can be started: it is not known where Python is")
    return [sys.executable, *options]


def call(module: str, *arguments: str) -> list[str]:
    """The command line that calls `main()` of a module. Raises BusyError.

    Unlike `python -m`, it imports nothing from the current directory.
    """
    code = f"import sys; sys.path = [path for path in sys.path if path]; from {module} import main; main()"
    return python("-c", code, *arguments)

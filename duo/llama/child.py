"""Child: the command line of a process that runs a function of duo, and the end of such a process."""

import os
import sys
import threading

from duo.errors import BusyError

CALL = "--call"  # the first argument of the program in an archive, which runs as many programs: archive/start.py


def is_frozen() -> bool:
    """Whether this duo is from an archive (`make archive`), where sys.executable is duo and not Python."""
    return bool(getattr(sys, "frozen", False))


def call(module: str, *arguments: str, function: str = "main") -> list[str]:
    """The command line that calls a function of a module with `arguments`.

    Unlike `python -m`, it imports nothing from the current directory. Raises BusyError if this process does not know
    where Python is.
    """
    if not sys.executable:
        raise BusyError("no other process can be started: it is not known where Python is")
    if is_frozen():
        return [sys.executable, CALL, f"{module}:{function}", *arguments]
    code = (
        f"import sys; sys.path = list(filter(None, sys.path)); from {module} import {function}; sys.exit({function}())"
    )
    return [sys.executable, "-c", code, *arguments]


def end_with_stdin() -> None:
    """From now on, exit at once when standard input is closed."""

    def wait_for_eof() -> None:
        while os.read(0, 4096):  # not sys.stdin, which Python could not close at exit
            pass
        os._exit(0)

    threading.Thread(target=wait_for_eof, name="duo-stdin", daemon=True).start()

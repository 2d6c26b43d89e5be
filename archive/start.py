"""The program in an archive (`make archive`): duo, and the processes that it starts from itself."""

from __future__ import annotations

import os
import sys

CALL = "--call"  # duo/llama/build.py; imported here, it would delay --version


def main() -> None:
    """Run duo, or after --call the function module:name. PyInstaller calls this file as the main program."""
    _restore_environment()
    if sys.argv[1:2] != [CALL]:
        from duo.cli.main import main as duo  # noqa: PLC0415 - only now

        duo()
        return
    from importlib import import_module  # noqa: PLC0415

    module, _, function = sys.argv[2].partition(":")
    del sys.argv[1:3]
    getattr(import_module(module), function)()


def _restore_environment() -> None:
    """PyInstaller's program has this process find libraries in the archive first.

    Other programs must find their own. This program as a child process must begin anew, or it would find none.
    """
    for name in [name for name in os.environ if name.startswith("_PYI_")]:
        del os.environ[name]
    os.environ.pop("LD_LIBRARY_PATH", None)
    if before := os.environ.pop("LD_LIBRARY_PATH_ORIG", None):
        os.environ["LD_LIBRARY_PATH"] = before


if __name__ == "__main__":
    main()

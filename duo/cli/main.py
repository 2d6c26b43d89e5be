"""The command `duo`, until its parts are imported: that takes most of a second, in which Ctrl-C is expected too."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the core of `signal`, whose own import takes milliseconds
import sys


def main() -> None:
    """Run the command line and exit: 0, 1 for errors, 2 for usage, 128 + n after signal n.

    While there is nothing to clean up, SIGINT ends the process, as in C programs: during imports, an exception could
    be raised anywhere. See duo/cli/terminal/interrupts.py for what comes after that.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else ignored: a job in the background
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from duo.cli.terminal.streams import open_streams  # noqa: PLC0415 - only now

    open_streams()
    if sys.argv[1:] in ([], ["--version"]):  # quick: the options are neither declared nor parsed
        _show_quickly()
    from duo.cli.app import run  # noqa: PLC0415

    sys.exit(run())


def _show_quickly() -> None:
    """Exit after the versions, or the start page; return if the rest of duo is needed."""
    from contextlib import suppress  # noqa: PLC0415

    with suppress(OSError):  # which run() explains
        if sys.argv[1:]:
            from duo.cli.commands.about import show_versions  # noqa: PLC0415

            show_versions(verbose=False)
        else:
            from duo.cli.start import is_needed, show_start  # noqa: PLC0415

            if not is_needed():
                return
            show_start()
        sys.stdout.flush()
        sys.exit(0)


if __name__ == "__main__":
    main()

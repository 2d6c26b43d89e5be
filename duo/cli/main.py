"""The command `duo`, until its parts are imported: that takes most of a second, in which Ctrl-C is expected too."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the core of `signal`, whose own import takes milliseconds
import io
import os
import sys

_N_FILES = 32  # at once, for the modules, a model and a few connections
TYPE_CHECKING = False  # as in `typing`, whose import takes milliseconds, in which Ctrl-C would be a traceback

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def main() -> None:
    """Run the command line and exit: 0, 1 for errors, 2 for usage, 128 + n after signal n.

    While there is nothing to clean up, SIGINT ends the process, as in C programs: during imports, an exception could
    be raised anywhere. See duo/cli/terminal/interrupts.py for what comes after that.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else ignored: a job in the background
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _open_streams()
    _show_quickly()
    _check_files()
    from duo.cli.app import run  # noqa: PLC0415

    sys.exit(run())


def _show_quickly() -> None:
    """Exit after what needs no options, which are neither declared nor parsed then; else return."""
    from duo.cli.about import show  # noqa: PLC0415

    try:
        if not show():
            return
        sys.stdout.flush()
    except OSError:  # which run() explains
        return
    sys.exit(0)


def _check_files() -> None:
    """Exit if the system lets this process open so few files that modules cannot be imported."""
    import resource  # noqa: PLC0415

    if 0 <= (n_files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < _N_FILES:  # -1: any number
        sys.stderr.write(f"duo: error: only {n_files} files may be open: allow at least {_N_FILES} (ulimit -n)\n")
        sys.exit(1)


class _Lossy(io.FileIO):
    """Drops what cannot be written: messages are lost if the disk is full or the reader has left, the text is not."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError:
            return size


def _open_streams() -> None:
    """Open what the parent process closed, at os.devnull, and let stderr drop what cannot be written.

    Otherwise the next file that is opened would become standard error, to which C code writes. To write to a stdout
    that was closed is an error.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        if fd == 1:
            os.close(fd)
            os.open(os.devnull, os.O_RDONLY)
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8")
    try:
        is_file = sys.stderr is None or sys.stderr.fileno() == 2
    except OSError:  # in a test
        is_file = False
    if is_file:
        encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        stream = io.BufferedWriter(_Lossy(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(stream, encoding, "backslashreplace", line_buffering=True)


if __name__ == "__main__":
    main()

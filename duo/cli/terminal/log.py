"""Log records as lines on stderr."""

from __future__ import annotations

import atexit
import logging
import queue
import traceback
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path

from duo.cli.terminal.console import say, warn, with_options
from duo.cli.terminal.files import check_writable


class _NoticeHandler(logging.Handler):
    """Shows what is logged like every other line; with `tracebacks`, those too."""

    def __init__(self, level: int, *, tracebacks: bool) -> None:
        super().__init__(level)
        self._tracebacks = tracebacks

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if self._tracebacks and record.exc_info:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        with suppress(OSError, ValueError):  # where stderr is closed or full
            (warn if record.levelno >= logging.WARNING else _notice)(with_options(message))


_records: queue.Queue[logging.LogRecord] = queue.Queue()


def finish_notices() -> None:
    """Wait until all that is logged is said, so that it comes before what follows."""
    _records.join()


class _QueueHandler(QueueHandler):
    """Passes records on as they are: they do not leave the process."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


def _notice(text: str) -> None:
    say(f"duo: {text}")


def send_log(*, verbose: bool, file: Path | None, hidden: tuple[str, ...] = ()) -> None:
    """Say on stderr what is logged, from now on. Raises UsageError for a file that cannot be written.

    llama.cpp's log, and tracebacks, go there if `verbose`, to a file, to both or nowhere. Of the `hidden` loggers only
    warnings are said. Whatever logs does not wait for the terminal.
    """
    check_writable(file, "--log-file")
    logging.raiseExceptions = False  # a full disk ends the log, not the run
    logging.getLogger("asyncio").addHandler(logging.NullHandler())  # what it says is about connections that broke
    library_stderr()
    everything, llama = logging.getLogger("duo"), logging.getLogger("duo.llama")
    everything.propagate = False
    everything.setLevel(logging.DEBUG if file else logging.INFO)
    listener = QueueListener(_records, _NoticeHandler(logging.INFO, tracebacks=verbose))
    listener.start()
    atexit.register(listener.stop)
    notices = _QueueHandler(_records)
    notices.setLevel(logging.INFO)
    notices.addFilter(lambda record: not record.name.startswith("duo.llama"))
    notices.addFilter(lambda record: record.levelno >= logging.WARNING or record.name not in hidden)
    everything.addHandler(notices)
    llama.setLevel(logging.NOTSET if file or verbose else logging.CRITICAL)
    if verbose:
        llama.addHandler(logging.StreamHandler())
        llama.handlers[-1].setLevel(logging.INFO)
    if file is not None:
        everything.addHandler(logging.FileHandler(file, encoding="utf-8"))


def library_stderr() -> None:
    """Standard error belongs to this process, so that what C code writes there can be read."""
    from duo.llama import library  # noqa: PLC0415 - not for --help

    library.owns_stderr = True

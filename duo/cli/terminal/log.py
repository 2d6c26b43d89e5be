"""Log records as lines on stderr."""

from __future__ import annotations

import atexit
import logging
import queue
import traceback
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from typing import TYPE_CHECKING

from duo.cli.terminal.console import check_writable, note, with_options

if TYPE_CHECKING:
    from duo.cli.options.groups import LogOptions

_records: queue.Queue[logging.LogRecord] = queue.Queue()


class _NoticeHandler(logging.Handler):
    """Prints records like other messages; with `tracebacks`, those too."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(logging.INFO)
        self._tracebacks = tracebacks

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if self._tracebacks and record.exc_info:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        with suppress(OSError, ValueError):  # stderr may be closed or full
            note(f"{'warning: ' if record.levelno >= logging.WARNING else ''}{with_options(message)}")


class _QueueHandler(QueueHandler):
    """Passes records on unchanged: they stay in this process."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


def finish_notices() -> None:
    """Wait until all records are printed, so that later output follows them."""
    _records.join()


def send_log(options: LogOptions, *, hidden: tuple[str, ...] = ()) -> None:
    """Print log records on stderr from now on. Raises UsageError for a file that cannot be written.

    llama.cpp's records, and tracebacks, are printed with -v; --log-file has them in any case. Of `hidden` loggers,
    only warnings are printed. Logging does not wait for the terminal.
    """
    verbose, file = options.verbose, options.log_file
    check_writable(file, "--log-file")
    logging.raiseExceptions = False  # a full disk must not stop the run
    logging.getLogger("asyncio").addHandler(logging.NullHandler())  # its records are about broken connections
    everything, llama = logging.getLogger("duo"), logging.getLogger("duo.llama")
    everything.propagate = False
    everything.setLevel(logging.DEBUG if file else logging.INFO)
    listener = QueueListener(_records, _NoticeHandler(tracebacks=verbose))
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

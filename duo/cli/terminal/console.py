"""Messages, log records and progress bars on stderr, tables as text, and the files that options name."""

from __future__ import annotations

import atexit
import functools
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from duo.config import EngineConfig
from duo.config.option import declared
from duo.errors import DuoError, UsageError

if TYPE_CHECKING:
    import logging

    from rich.console import Console

    from duo.cli.options import LogOptions

_DELAY_S = 2.0  # before a progress bar is shown
_SPEED_S = 600.0  # of which a bar knows the speed, and so the time that is left
_records: queue.Queue[logging.LogRecord] = queue.Queue()  # that are not printed yet


@functools.cache
def stderr() -> Console:
    """Standard error, as Rich writes to it."""
    from rich.console import Console  # noqa: PLC0415 - slow, and not at the start

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def say(text: str) -> None:
    """Print a line on stderr."""
    stderr().print(text, markup=False)


def note(text: str) -> None:
    """Print a message of the command."""
    say(f"duo: {text}")


def warn(text: str) -> None:
    """Print a warning."""
    note(f"warning: {text}")


def send_log(options: LogOptions, *, hidden: tuple[str, ...] = ()) -> None:
    """Print log records on stderr from now on. Raises UsageError for a file that cannot be written.

    llama.cpp's records, and tracebacks, are printed with -v; --log-file has them in any case. Of `hidden` loggers,
    only warnings are printed. Logging does not wait for the terminal.
    """
    import logging  # noqa: PLC0415 - slow, and not for --help
    from logging.handlers import QueueHandler, QueueListener  # noqa: PLC0415

    verbose, file = options.verbose, options.log_file
    check_writable(file, "--log-file")
    logging.raiseExceptions = False  # a full disk must not stop the run
    logging.getLogger("asyncio").addHandler(logging.NullHandler())  # its records are about broken connections
    everything, llama = logging.getLogger("duo"), logging.getLogger("duo.llama")
    everything.propagate = False
    everything.setLevel(logging.DEBUG if file else logging.INFO)

    def show(record: logging.LogRecord) -> None:
        message = record.getMessage()
        if verbose and record.exc_info:
            message += f"\n{logging.Formatter().formatException(record.exc_info)}"
        with suppress(OSError, ValueError):  # stderr may be closed or full
            (warn if record.levelno >= logging.WARNING else note)(with_options(message))

    notices, printer = QueueHandler(_records), logging.Handler()
    notices.prepare = lambda record: record  # type: ignore[method-assign]  # unchanged: it stays in this process
    printer.emit = show  # type: ignore[method-assign]
    listener = QueueListener(_records, printer)
    listener.start()
    atexit.register(listener.stop)
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


def finish_notices() -> None:
    """Wait until all records are printed, so that later output follows them."""
    _records.join()


def discard_stdout() -> None:
    """Drop what is still to be written to stdout, so that Python does not fail again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def progress_bar(
    begins: str = "preparing the models", *, unit_bytes: bool = False, shows_time: bool = False
) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr: call it with what is done, how much, and of how much (None: unknown).

    It is shown on a terminal only, after two seconds, and nothing of it stays. `begins`: before the first call; empty:
    nothing is shown until then, and what works may draw a bar of its own. `shows_time`: the time that is left, too.
    """
    if not sys.stderr.isatty():
        yield lambda *_, **__: None
        return
    from rich import progress as bars  # noqa: PLC0415

    parts = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    parts += [bars.DownloadColumn() if unit_bytes else bars.TaskProgressColumn()]
    parts += [bars.TimeRemainingColumn()] if shows_time else []
    same = sys.stdout.isatty()  # then output to stdout goes above the bar
    progress = bars.Progress(
        *parts, console=stderr(), transient=True, refresh_per_second=4, redirect_stdout=same,
        speed_estimate_period=_SPEED_S,
    )  # fmt: skip
    delay = threading.Timer(_DELAY_S, progress.start)

    def show(description: str, done: float, total: float | None = 1.0) -> None:
        if [task.description for task in progress.tasks] != [description]:
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.add_task(description, total=total)
        progress.update(progress.task_ids[0], completed=done, total=total)
        if delay.ident is None:
            delay.start()

    if begins:
        show(begins, 0, None)
    try:
        yield show
    finally:
        delay.cancel()
        if delay.ident is not None:
            delay.join()
        if progress.live.is_started:
            progress.stop()


@contextmanager
def prompt_bar(n_tokens: int, n_batch: int) -> Iterator[Callable[[int], None]]:
    """A progress_bar() for a prompt of `n_tokens`: call it with those that are read. The last batch has no parts."""
    with progress_bar() as show:
        yield lambda n: show("reading the prompt", n, n_tokens if n + n_batch < n_tokens else None)


def columns(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Lines with `rows` of equal length in aligned columns; those in `left` are aligned at their beginnings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def figure(number: float | None, form: str) -> str:
    """A number as text, "-" if there is none."""
    return "-" if number is None else f"{number:{form}}"


def size_of(n_bytes: int) -> str:
    """Bytes as people write them."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def check_writable(path: Path | None, option: str) -> None:
    """Raise UsageError if a file cannot be written."""
    if path is None or str(path) == "-":
        return
    with blame(option, path, UsageError):
        existed = path.exists()
        if existed and not path.is_file() and not path.is_dir():
            return  # a pipe, whose reader would exit
        path.open("a").close()
        if not existed:
            path.unlink()


@contextmanager
def blame(option: str, path: Path, error_type: type[DuoError] = DuoError) -> Iterator[None]:
    """Convert an OSError to an error that names the option and its file."""
    try:
        yield
    except OSError as error:
        raise error_type(f"{option} {path}: {error.strerror}") from error


def with_options(text: str) -> str:
    """A message, with options instead of the parameters of an engine."""
    flags = {one.name: one.option.flag for one in declared(EngineConfig()) if "_" in one.name and one.option.flag}
    flags["profile=False"] = "--no-profile"
    return re.sub(rf"(?<![\w./-])({'|'.join(flags)})(?![\w./-])", lambda match: flags[match[1]], text)

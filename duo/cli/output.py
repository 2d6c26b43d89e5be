"""Text to stdout; everything else to stderr."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from duo.cli.options import Color
from duo.errors import DuoError, UsageError
from duo.spec.types import Step

stderr = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

_ACCEPTED = b"\x1b[32m"
_BOLD = b"\x1b[1m"
# What could drive a terminal: C0 but tab and newline, DEL, and C1 in UTF-8.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_STRUCK = b"\x1b[9;2m"
_RESET = b"\x1b[0m"


def say(text: str) -> None:
    """One line for the user, on stderr."""
    stderr.print(text, markup=False)


def warn(text: str) -> None:
    """One line about what is not as asked for; the run goes on."""
    say(f"duo: warning: {text}")


# Parameters of the rooms below in the midst of a message: neither words of English nor names that a user may give.
_PARAMETERS = {
    "n_ctx": "-c", "type_k": "-ctk", "type_v": "-ctv", "draft_n_max": "--draft", "n_gpu_layers": "-ngl",
    "draft_n_gpu_layers": "-ngld", "profile=False": "--no-profile",
}  # fmt: skip
_PARAMETER = re.compile(rf"(?<![\w./-])({'|'.join(_PARAMETERS)})(?![\w./-])")


def with_options(text: str) -> str:
    """A message of the rooms below in terms of options."""
    return _PARAMETER.sub(lambda match: _PARAMETERS[match[1]], text)


def marks_tokens(color: Color) -> bool:
    """Whether the text is to be marked with colours: asked for, or a terminal that wants them."""
    if color is Color.AUTO:
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return color is Color.ALWAYS


class TextSink(Protocol):
    """Where text goes to."""

    def write(self, data: memoryview, /) -> int:
        """Take some of it, and say how much."""
        ...

    def flush(self) -> None:
        """Hold nothing back."""
        ...

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        ...


class TextWriter:
    """Writes steps to stdout as they come; on a terminal without what could drive it.

    With `marks`, accepted draft tokens are green and every other step is bold, so that the steps can be told apart.
    Without, nothing but the text's bytes.
    """

    def __init__(
        self, *, marks: bool, stream: TextSink | None = None, rejected: Callable[[int], bytes] | None = None
    ) -> None:
        """`rejected` spells guesses that were rejected, which are shown struck through if there are marks."""
        self._stream: TextSink = stream or sys.stdout.buffer
        self._on_terminal = self._stream.isatty()
        self._marks = marks
        self._rejected = rejected
        self._bold = False
        self._last = b""

    def prompt(self, text: str) -> None:
        """Write the prompt, unmarked. Raises BrokenPipeError when nobody reads any more."""
        self._write(text.encode())

    def step(self, step: Step) -> None:
        """Write one step. Raises BrokenPipeError when nobody reads any more."""
        text = tuple(map(self._harmless, step.pieces))
        if not any(text):
            return
        self._write(self._marked(step, text) if self._marks else b"".join(text))
        self._last = b"".join(text)[-1:]

    def end(self) -> None:
        """Put what follows on a terminal on a line of its own."""
        if self._last not in (b"", b"\n") and (sys.stdout.isatty() or _streams_are_one()):
            say("")

    def _harmless(self, text: bytes) -> bytes:
        return _CONTROLS.sub(b"", text) if self._on_terminal else text

    def _marked(self, step: Step, texts: tuple[bytes, ...]) -> bytes:
        style = _BOLD if self._bold else b""
        self._bold = not self._bold
        tokens = [
            style + (_ACCEPTED if i < step.n_accepted else b"") + text + _RESET for i, text in enumerate(texts) if text
        ]
        if self._rejected is not None and step.rejected:
            wrong = self._harmless(b"".join(map(self._rejected, step.rejected))).replace(b"\n", b" ")
            tokens.insert(step.n_accepted, _STRUCK + wrong + _RESET)
        return b"".join(tokens)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # with PYTHONUNBUFFERED, a part of it may be taken at a time
            rest = rest[self._stream.write(rest) :]
        self._stream.flush()


def _streams_are_one() -> bool:
    """Whether stdout and stderr go to the same file, as with 2>&1."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except OSError:
        return False


@contextmanager
def progress_bar(*, unit_bytes: bool = False) -> Iterator[ProgressBar]:
    """A bar on stderr that vanishes when it is done; nothing where stderr is no terminal."""
    amount = DownloadColumn() if unit_bytes else TaskProgressColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount)
    # What is printed meanwhile goes above the bar only where both are on the same terminal.
    shared = sys.stdout.isatty()
    hidden = not stderr.is_terminal
    with Progress(*columns, console=stderr, transient=True, disable=hidden, redirect_stdout=shared) as progress:
        yield ProgressBar(progress)


class ProgressBar:
    """One bar per description."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, description: str, done: float, total: float | None = 1.0) -> None:
        """Show that `done` of `total` is done."""
        if description not in self._tasks:
            for task in self._tasks.values():
                self._progress.remove_task(task)
            self._tasks = {description: self._progress.add_task(description, total=total)}
        self._progress.update(self._tasks[description], completed=done, total=total)


def check_writable(path: Path | None, option: str) -> None:
    """Find out now whether a file can be written at the end. Raises UsageError."""
    if path is None:
        return
    with blame(option, path, UsageError):
        existed = path.exists()
        if existed and not path.is_file() and not path.is_dir():
            return  # a pipe: opening it now would end its reader
        path.open("a").close()
        if not existed:
            path.unlink()


@contextmanager
def blame(option: str, path: Path, error_type: type[DuoError] = DuoError) -> Iterator[None]:
    """Make an OSError inside the block one that names the option whose file it is about."""
    try:
        yield
    except OSError as error:
        raise error_type(f"{option} {path}: {error.strerror}") from error


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

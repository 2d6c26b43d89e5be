"""Lines and progress bars for the user, on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TaskProgressColumn, TextColumn

stderr = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


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

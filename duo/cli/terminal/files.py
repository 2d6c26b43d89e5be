"""Files that options name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duo.errors import DuoError, UsageError


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

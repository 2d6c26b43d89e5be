"""Output files of options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duo.errors import DuoError, UsageError


def check_writable(path: Path | None, option: str) -> None:
    """Raise UsageError if a file cannot be written."""
    if path is None:
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

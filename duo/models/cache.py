"""The user's cache directory, and atomic writes to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from duo.errors import UsageError

_WORK_PREFIX = "work-"


def cache_dir() -> Path:
    """The cache directory: $DUO_CACHE, $XDG_CACHE_HOME/duo or the system's default. Raises UsageError."""
    return user_dir("DUO_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches", "cached models: set DUO_CACHE")


def user_dir(own: str, shared: str, linux: str, mac: str, purpose: str) -> Path:
    """The directory in the environment variable `own`, or duo's in that of `shared`, or in the home directory.

    Raises UsageError if `own` is not an absolute path, or if there is no home directory.
    """
    if folder := os.environ.get(own):
        if not Path(folder).is_absolute():
            raise UsageError(f"{own} must be an absolute path, not {folder}")
        return Path(folder)
    if (base := Path(os.environ.get(shared, ""))).is_absolute():  # the XDG specification: ignore relative paths
        return base / "duo"
    try:
        return Path.home() / (mac if sys.platform == "darwin" else linux) / "duo"
    except RuntimeError as error:
        raise UsageError(f"no home directory for {purpose}") from error


@contextmanager
def work_folder(folder: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Lock `folder` against other processes and yield a temporary folder inside it, which is removed on exit.

    Write files there and move them into `folder` with `Path.replace` once they are complete: `folder` then never
    contains a partial file, even if the process is killed. `on_wait` is called if another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock", on_wait):
        for stale in folder.glob(f"{_WORK_PREFIX}*"):  # of a killed process: a live one would hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=folder, ignore_cleanup_errors=True) as work:
            yield Path(work)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock on `path`, which the system releases when the process ends."""
    # Not blocking: a named pipe in its place would wait for a reader.
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "rb+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""The user's cache directory, and how files get into it whole or not at all."""

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
    """Where duo keeps what it made: $DUO_CACHE, $XDG_CACHE_HOME/duo or the system's usual place.

    Raises UsageError for a $DUO_CACHE that is no absolute path, and when there is no home directory.
    """
    if named := named_folder("DUO_CACHE", "XDG_CACHE_HOME"):
        return named
    try:
        return _system_cache_dir()
    except RuntimeError as error:
        raise UsageError("there is no home directory to keep models in: set DUO_CACHE") from error


def named_folder(own: str, shared: str) -> Path | None:
    """The folder that the environment variable `own` names, or duo's in the one that `shared` does; None without both.

    Raises UsageError if `own` is no absolute path.
    """
    if folder := os.environ.get(own):
        if not Path(folder).is_absolute():
            raise UsageError(f"{own} must be an absolute path, not {folder}")
        return Path(folder)
    common = Path(os.environ.get(shared, ""))
    # A relative one is to be ignored, says the XDG specification.
    return common / "duo" if common.is_absolute() else None


def _system_cache_dir() -> Path:
    if sys.platform == "win32":  # pragma: no cover
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "duo" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "duo"
    return Path.home() / ".cache" / "duo"


@contextmanager
def work_folder(folder: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Keep other processes out of `folder` and give a work folder inside it, gone on leaving.

    Make files in the work folder and move them into `folder` with `Path.replace` once they are right:
    whatever kills the process, `folder` never holds half a file. `on_wait` is called if another process is
    at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock", on_wait):
        for stale in folder.glob(f"{_WORK_PREFIX}*"):  # of a killed process: the living ones hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=folder, ignore_cleanup_errors=True) as work:
            yield Path(work)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock on `path`; the system gives it back when the process ends, however it ends."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

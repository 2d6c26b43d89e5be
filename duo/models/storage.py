"""Files of the user: duo's directories, atomic writes, and bounded reads of what somebody else may have written."""

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from duo.errors import UsageError

MIB = 1 << 20
_WORK_PREFIX = "work-"


def cache_dir() -> Path:
    """The cache directory: $DUO_CACHE, $XDG_CACHE_HOME/duo or the system's default. Raises UsageError."""
    return _user_dir("DUO_CACHE", ".cache", "Library/Caches", "cached models: set DUO_CACHE")


def config_dir() -> Path:
    """The config directory: $DUO_CONFIG, $XDG_CONFIG_HOME/duo or the system's default. Raises UsageError."""
    purpose = "profiles: set DUO_CONFIG or profile=False"
    return _user_dir("DUO_CONFIG", ".config", "Library/Application Support", purpose)


def hub_dir() -> Path:
    """The cache of Hugging Face's programs, as their variables say. Raises RuntimeError without a home directory."""
    env = os.environ.get
    home = env("HF_HOME") or f"{env('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    folder = env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(folder)).expanduser()


def _user_dir(own: str, linux: str, mac: str, purpose: str) -> Path:
    if folder := os.environ.get(own):
        if not Path(folder).is_absolute():
            raise UsageError(f"{own} must be an absolute path, not {folder}")
        return Path(folder)
    base = Path(os.environ.get(f"{own.replace('DUO', 'XDG')}_HOME", ""))
    if base.is_absolute():  # the XDG specification: ignore relative paths
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
    # Not blocking: a named pipe in its place would wait for a reader. The system releases the lock with the process.
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(folder / ".lock", flags, 0o666), "rb+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        for stale in folder.glob(f"{_WORK_PREFIX}*"):  # of a killed process: a live one would hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=folder, ignore_cleanup_errors=True) as work:
            yield Path(work)


@contextmanager
def replacing(path: Path, prefix: str) -> Iterator[BinaryIO]:
    """A new file for its owner only, named by `prefix` and eight characters, which replaces `path` at the end.

    After an exception there is what was there before; a process that is killed also leaves the new file.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, delete=False) as part:
        try:
            yield cast("BinaryIO", part)
            part.close()
            Path(part.name).replace(path)
        finally:
            Path(part.name).unlink(missing_ok=True)


def read_at_most(file: BinaryIO, most: int) -> bytes:
    """All of `file`, such as a pipe or /dev/stdin. Raises OSError (EFBIG) if it has more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // MIB} MiB, the most that is read")
    return data


def read_path(path: Path, most: int) -> bytes:
    """All of the file at `path`, which may be a pipe. Raises OSError."""
    with path.open("rb") as file:
        return read_at_most(file, most)


def open_own(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else, such as a named pipe, which would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a directory" if stat.S_ISDIR(mode) else "not a regular file")
    return os.fdopen(descriptor, "rb")

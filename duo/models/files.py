"""Reads of files that somebody else may have written: bounded, and without waiting for a writer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MIB = 1 << 20


def read_at_most(file: BinaryIO, most: int) -> bytes:
    """All of `file`, such as a pipe or /dev/stdin. Raises OSError (EFBIG) if it has more than `most` bytes."""
    data = bytearray()
    while chunk := file.read(MIB):
        data += chunk
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it has more than {most // MIB} MiB, the most that is read")
    return bytes(data)


def read_path(path: Path, most: int) -> bytes:
    """All of the file at `path`, which may be a pipe. Raises OSError."""
    with path.open("rb") as file:
        return read_at_most(file, most)


def read_own(path: Path, most: int) -> bytes:
    """All of a file that duo or another program keeps at `path`. Raises OSError, also if it is not a regular file."""
    with open_own(path) as file:
        return read_at_most(file, most)


def open_own(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else, such as a named pipe, which would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file")
    return os.fdopen(descriptor, "rb")

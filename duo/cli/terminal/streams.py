"""The standard streams: none is closed, and nothing that is written to stderr fails."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Lossy(io.FileIO):
    """Drops what cannot be written: messages are lost if the disk is full or the reader has left, the text is not."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError:
            return size


def open_streams() -> None:
    """Open what the parent process closed, at os.devnull, and let stderr drop what cannot be written.

    Otherwise the next file that is opened would become standard error, to which C code writes.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")
    if _descriptor() == 2:
        encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        stream = io.BufferedWriter(_Lossy(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(stream, encoding, "backslashreplace", line_buffering=True)


def _descriptor() -> int | None:
    """That of stderr; None if it is no file, as in a test."""
    try:
        return 2 if sys.stderr is None else sys.stderr.fileno()
    except OSError:
        return None

"""Bounded reads: endless files, pipes, and files that are not regular."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from duo.errors import ModelError
from duo.models.cache import work_folder
from duo.models.files import MIB, read_own, read_path
from duo.models.paths import check_gguf


def test_a_file_of_the_size_that_is_allowed_and_one_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for read in (read_path, read_own):
        path.write_bytes(b"x" * MIB)
        assert len(read(path, MIB)) == MIB
        path.write_bytes(b"x" * (MIB + 1))
        with pytest.raises(OSError, match="more than 1 MiB"):
            read(path, MIB)


def test_an_endless_file() -> None:
    with pytest.raises(OSError, match="more than 2 MiB"):
        read_path(Path("/dev/zero"), 2 * MIB)
    with pytest.raises(OSError, match="not a regular file"):
        read_own(Path("/dev/zero"), MIB)


def test_a_pipe_is_read_where_the_user_names_it(tmp_path: Path) -> None:
    """As with <(...) and /dev/stdin."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(b"some text")
    assert read_path(Path(f"/dev/fd/{reader}"), MIB) == b"some text"
    os.close(reader)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    thread = threading.Thread(target=fifo.write_bytes, args=(b"more text",))
    thread.start()
    assert read_path(fifo, MIB) == b"more text"
    thread.join()


@pytest.mark.timeout(60)
def test_a_named_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file"):
        read_own(fifo, MIB)
    with pytest.raises(ModelError, match=r"fifo\.gguf: not a regular file"):
        check_gguf(fifo)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / ".lock")
    with work_folder(tmp_path / "folder"):
        pass


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_own(tmp_path, MIB)
    with pytest.raises(FileNotFoundError):
        read_own(tmp_path / "none", MIB)
    with pytest.raises(ModelError, match="a directory, not a GGUF file"):
        check_gguf(tmp_path)

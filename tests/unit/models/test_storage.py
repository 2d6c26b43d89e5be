"""The user's directories, work folders, and bounded reads of files that are endless, pipes, or not regular."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from duo.errors import ModelError, UsageError
from duo.models.hub import check_gguf
from duo.models.storage import MIB, cache_dir, config_dir, read_path, work_folder


@pytest.mark.parametrize(
    ("find", "own", "shared", "linux", "mac"),
    [
        (cache_dir, "DUO_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches"),
        (config_dir, "DUO_CONFIG", "XDG_CONFIG_HOME", ".config", "Library/Application Support"),
    ],
)
def test_directories(
    find: Callable[[], Path], own: str, shared: str, linux: str, mac: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(shared, "relative")
    monkeypatch.setenv(own, "")
    for platform, default in (("linux", linux), ("darwin", mac)):
        monkeypatch.setattr(sys, "platform", platform)
        assert find() == Path("/home/me") / default / "duo"
    monkeypatch.setenv(shared, "/xdg")
    assert find() == Path("/xdg/duo")
    monkeypatch.setenv(own, "/mine")
    assert find() == Path("/mine")
    monkeypatch.setenv(own, "relative")
    with pytest.raises(UsageError, match=f"{own} must be an absolute path, not relative"):
        find()


def test_a_work_folder_is_removed_with_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "down"
    with suppress(KeyboardInterrupt), work_folder(folder) as work:
        (work / "stays").mkdir()
        (work / "done").write_text("whole")
        (work / "done").replace(folder / "done")
        raise KeyboardInterrupt
    assert {path.name for path in folder.iterdir()} == {".lock", "done"}


def test_a_work_folder_waits_for_the_lock_and_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    entered, waits = threading.Event(), threading.Event()

    def hold() -> None:
        with work_folder(tmp_path, on_wait=pytest.fail) as work:
            (work / "half").write_text("ha")
            entered.set()
            assert waits.wait(60)
            assert (work / "half").exists(), "the one that waits removes nothing"

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(60)
    (tmp_path / "work-of-a-killed-process").mkdir()
    with work_folder(tmp_path, waits.set) as ours:
        assert waits.is_set()
        assert list(tmp_path.glob("work-*")) == [ours]
    other.join()


def test_a_file_of_the_size_that_is_allowed_and_one_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="more than 2 MiB"):
        read_path(Path("/dev/zero"), 2 * MIB)
    path.write_bytes(b"x" * MIB)
    assert len(read_path(path, MIB)) == MIB
    path.write_bytes(b"x" * (MIB + 1))
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_path(path, MIB)


@pytest.mark.timeout(60)
def test_a_named_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    with pytest.raises(ModelError, match=r"fifo\.gguf: not a regular file"):
        check_gguf(fifo)
    with pytest.raises(ModelError, match="a directory"):
        check_gguf(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / ".lock")
    with work_folder(tmp_path / "folder"):
        pass

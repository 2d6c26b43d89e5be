"""The user's directories, work folders, and bounded reads of files that are endless, pipes, or not regular.

That a work folder is removed with its content is in test_demo.py.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from duo.errors import ModelError, UsageError
from duo.models.hub import check_gguf
from duo.models.storage import MIB, cache_dir, config_dir, read_path, work_folder


@pytest.mark.parametrize(
    ("find", "kind", "linux", "mac"),
    [
        (cache_dir, "CACHE", ".cache", "Library/Caches"),
        (config_dir, "CONFIG", ".config", "Library/Application Support"),
    ],
)
def test_directories(
    find: Callable[[], Path], kind: str, linux: str, mac: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for platform, own, shared, expected in (
        ("linux", "", "relative", f"/home/me/{linux}/duo"),
        ("darwin", "", "relative", f"/home/me/{mac}/duo"),
        ("linux", "", "/xdg", "/xdg/duo"),
        ("linux", "/mine", "/xdg", "/mine"),
        ("linux", "relative", "/xdg", ""),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        for name, value in (("HOME", "/home/me"), (f"DUO_{kind}", own), (f"XDG_{kind}_HOME", shared)):
            monkeypatch.setenv(name, value)
        if expected:
            assert find() == Path(expected)
    with pytest.raises(UsageError, match=f"DUO_{kind} must be an absolute path, not relative"):
        find()


def test_a_work_folder_waits_for_the_lock(tmp_path: Path) -> None:
    entered, waits = threading.Event(), threading.Event()

    def hold() -> None:
        with work_folder(tmp_path, on_wait=pytest.fail) as work:
            entered.set()
            assert waits.wait(60)
            assert work.exists(), "the one that waits removes nothing"

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(60)
    with work_folder(tmp_path, waits.set) as ours:
        assert waits.is_set()
        assert list(tmp_path.glob("work-*")) == [ours]
    other.join()


def test_a_file_of_the_size_that_is_allowed_and_one_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * MIB)
    assert len(read_path(path, MIB)) == MIB
    path.write_bytes(b"x" * (MIB + 1))
    for file in (path, Path("/dev/zero")):
        with pytest.raises(OSError, match="more than 1 MiB"):
            read_path(file, MIB)


@pytest.mark.timeout(60)
def test_a_named_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ModelError, match=r"\.lock: not a regular file"):
        check_gguf(tmp_path / ".lock")
    with pytest.raises(ModelError, match="a directory"):
        check_gguf(tmp_path)
    with work_folder(tmp_path):
        pass

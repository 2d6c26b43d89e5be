"""The cache directory and its work folders."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from duo.errors import UsageError
from duo.models.cache import cache_dir, work_folder


def test_cache_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like those of profiles, whose tests have more of them."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("DUO_CACHE", raising=False)
    for platform, default in (("linux", ".cache/duo"), ("darwin", "Library/Caches/duo")):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_dir() == Path("/home/me") / default
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/duo")
    monkeypatch.setenv("DUO_CACHE", "/mine")
    assert cache_dir() == Path("/mine")
    monkeypatch.setenv("DUO_CACHE", "relative")
    with pytest.raises(UsageError, match="DUO_CACHE must be an absolute path, not relative"):
        cache_dir()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_work_folder_is_removed_with_its_content(tmp_path: Path, error: type[BaseException] | None) -> None:
    folder = tmp_path / "deep" / "down"
    with suppress(ValueError, KeyboardInterrupt), work_folder(folder) as work:
        assert work.parent == folder
        (work / "stays").mkdir()
        (work / "done").write_text("whole")
        (work / "done").replace(folder / "done")
        if error:
            raise error
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

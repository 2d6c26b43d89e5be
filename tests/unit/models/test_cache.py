"""The cache directory and its work folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duo.errors import UsageError
from duo.models.cache import cache_dir, work_folder

HOLD = """
import sys
from pathlib import Path
from duo.models.cache import work_folder
with work_folder(Path(sys.argv[1])) as work:
    (work / "half").write_text("ha")
    print(work, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def test_the_user_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/duo")
    monkeypatch.setenv("DUO_CACHE", "/mine")
    assert cache_dir() == Path("/mine")


def test_the_system_s_usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_dir() == Path("/home/me/.cache/duo")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == Path("/home/me/Library/Caches/duo")


def test_relative_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/home/me/.cache/duo")
    monkeypatch.setenv("DUO_CACHE", "relative")
    with pytest.raises(UsageError, match="DUO_CACHE must be an absolute path, not relative"):
        cache_dir()


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UsageError, match="set DUO_CACHE"):
        cache_dir()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_work_folder_goes_with_all_that_stayed_in_it(tmp_path: Path, error: type[BaseException] | None) -> None:
    folder = tmp_path / "deep" / "down"
    try:
        with work_folder(folder) as work:
            assert work.parent == folder
            (work / "stays").mkdir()
            (work / "done").write_text("whole")
            (work / "done").replace(folder / "done")
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert {path.name for path in folder.iterdir()} == {".lock", "done"}


def test_one_process_at_a_time_and_a_killed_one_s_leavings_go(tmp_path: Path) -> None:
    waited: list[Path] = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())

        def on_wait() -> None:
            waited.append(theirs / "half")
            assert (theirs / "half").exists()  # the living one keeps its work
            other.kill()

        with work_folder(tmp_path, on_wait) as ours:
            assert waited == [theirs / "half"]
            assert list(tmp_path.glob("work-*")) == [ours]


def test_nobody_waits_alone(tmp_path: Path) -> None:
    for _ in range(2):
        with work_folder(tmp_path, on_wait=pytest.fail):
            pass

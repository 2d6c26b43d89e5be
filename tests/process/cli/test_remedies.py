"""The commands that mend an installation."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from duo.cli import remedies
from duo.diagnose.host import Gpu, read_host
from tests.command import ROOT, environment


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is not in the environment that the Makefile made, even where it is."""
    monkeypatch.setattr(remedies, "_checkout", lambda: None)


def in_checkout(code: str) -> str:
    """What `code` prints where duo runs in the environment that its Makefile made."""
    prepare = f"import sys; sys.prefix = {str(ROOT / '.venv')!r}; from duo.cli.remedies import build_with; {code}"
    command = [sys.executable, "-c", prepare]
    return subprocess.run(command, env=environment(), capture_output=True, check=True, text=True).stdout.strip()


def flags(command: str) -> set[str]:
    """What CMAKE_ARGS says in it."""
    (setting,) = [word for word in shlex.split(command) if word.startswith("CMAKE_ARGS=")]
    return set(setting.partition("=")[2].split())


def test_a_build_with_a_feature() -> None:
    command = remedies.build_with("RPC", backends=["CPU"])
    assert flags(command) == {"-DGGML_RPC=on"}
    words = shlex.split(command)
    for word in ("--force-reinstall", "--no-deps", "--no-cache-dir"):
        assert word in words
    assert words[words.index("--no-binary") + 1] == "llama-cpp-python"
    assert words[-1].startswith("llama-cpp-python==")


def test_what_the_build_has_is_not_lost() -> None:
    command = remedies.build_with("RPC", backends=["CUDA", "ROCm", "CPU", "something new"])
    assert flags(command) == {"-DGGML_CUDA=on", "-DGGML_HIP=on", "-DGGML_RPC=on"}
    assert flags(remedies.build_with("CUDA", "RPC", backends=["RPC"])) == {"-DGGML_CUDA=on", "-DGGML_RPC=on"}


def test_the_back_ends_are_those_of_this_build_unless_given() -> None:
    assert "-DGGML_CUDA=on" in flags(remedies.build_with("CUDA"))


def test_a_build_for_the_gpu_that_is_here() -> None:
    for vendor, flag in (("NVIDIA", "CUDA"), ("Apple", "METAL"), ("AMD", "VULKAN"), ("Intel", "VULKAN")):
        host = replace(read_host(), gpus=(Gpu("Intel", "in the processor"), Gpu(vendor, "a card")))
        best = remedies.best_backend(host)
        assert best is not None
        assert flags(remedies.build_with(best, backends=["RPC"])) == {"-DGGML_RPC=on", f"-DGGML_{flag}=on"}
    assert remedies.best_backend(replace(read_host(), gpus=())) is None


def test_in_a_checkout_the_makefile_does_it() -> None:
    make = f"make -C {ROOT}"
    assert in_checkout('print(build_with("CUDA", "RPC", backends=[]))') == (
        f'{make} clean && {make} CMAKE_ARGS="-DGGML_CUDA=on" demo'
    )
    assert in_checkout('print(build_with("RPC", backends=[]))') == f"{make} clean && {make} demo", (
        "it asks for RPC itself"
    )


def test_this_interpreter_is_the_one_that_is_mended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    if (Path(sys.executable).parent / "python").samefile(sys.executable):
        monkeypatch.setattr(sys, "executable", str(Path(sys.executable).parent / "python"))
        assert remedies.python() == "python"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert remedies.python() == shlex.quote(sys.executable)


def test_the_tested_range_is_that_of_the_package() -> None:
    wanted = remedies.tested_range()
    assert wanted is not None
    assert wanted.startswith(">=")
    assert wanted.replace(",", "").replace(".", "").strip("<>=0123456789") == ""


@pytest.mark.parametrize(
    ("number", "wanted", "expected"),
    [
        ("0.3.36", ">=0.3.36,<0.3.37", True),
        ("0.3.36.post1", ">=0.3.36,<0.3.37", True),
        ("0.3.37", ">=0.3.36,<0.3.37", False),
        ("0.3.9", ">=0.3.36,<0.3.37", False),
        ("0.10.0", ">=0.3.36,<0.3.37", False),
        ("1.0", "==1.0.0", True),
        ("1.0.1", "<=1.0", False),
    ],
)
def test_ranges(number: str, wanted: str, expected: bool) -> None:
    assert remedies.is_within(number, wanted) == expected

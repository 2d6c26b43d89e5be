"""`duo doctor`: what it says about installations, as in tests/golden/doctor.txt, and the command that builds."""

import shlex
import sys
from unittest import mock

from duo.cli import installation
from tests.command import ROOT
from tests.golden.doctor import DOCTOR, doctor


def test_the_descriptions_are_current() -> None:
    assert DOCTOR.read_text(encoding="utf-8") == doctor()


def test_the_command_that_builds() -> None:
    with mock.patch.object(sys, "prefix", "/usr"):
        command = installation.build_with("RPC", backends=["CUDA", "ROCm", "CPU", "something new"])
    setting, *words = shlex.split(command)
    assert setting == "CMAKE_ARGS=-DGGML_CUDA=on -DGGML_HIP=on -DGGML_RPC=on"
    assert {"--force-reinstall", "--no-deps", "--no-cache-dir"} < set(words)
    assert words[words.index("--no-binary") + 1] == "llama-cpp-python"
    assert words[-1].startswith("llama-cpp-python>=")
    with mock.patch.object(sys, "prefix", str(ROOT / ".venv")):
        make = f"make -C {ROOT}"
        assert (
            installation.build_with("CUDA", backends=[]) == f'{make} clean && {make} CMAKE_ARGS="-DGGML_CUDA=on" demo'
        )
        assert installation.build_with("RPC", backends=[]) == f"{make} clean && {make} demo", "it asks for RPC itself"
    with mock.patch.object(sys, "frozen", True, create=True):
        assert (
            installation.build_with("CUDA", backends=[]) == 'in a clone of duo: make CMAKE_ARGS="-DGGML_CUDA=on" demo'
        )

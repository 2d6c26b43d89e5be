"""What is said about runs and installations, as in tests/golden/*.txt (`make docs` writes them), and how to build."""

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from unittest import mock

from duo.bench.results import write_json
from duo.cli import installation
from duo.speculation.controller import Controller
from duo.speculation.report import report
from tests.command import ROOT
from tests.golden.doctor import DOCTOR, doctor
from tests.golden.reports import REPORTS, reports


def test_reports_and_descriptions_are_current() -> None:
    assert REPORTS.read_text(encoding="utf-8") == reports()
    assert DOCTOR.read_text(encoding="utf-8") == doctor()


def test_json_of_dataclasses_paths_and_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, report(Controller()), {"path": Path("/x\udc80"), "cores": frozenset((3, 1))})
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {*asdict(report(Controller())), "path", "cores"}
    assert (found["schedule"], found["path"], found["cores"]) == ("off", "/x\udc80", [1, 3])


def test_the_command_that_builds() -> None:
    with mock.patch.object(sys, "prefix", "/usr"):
        command = installation.build_with("RPC", backends=["CUDA", "ROCm", "CPU", "something new"])
    setting, *words = shlex.split(command)
    assert setting == "CMAKE_ARGS=-DGGML_CUDA=on -DGGML_HIP=on -DGGML_RPC=on -DLLAVA_BUILD=off"
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

"""`duo doctor` on this machine, and where llama.cpp cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duo.cli.commands.doctor import is_wrong
from duo.cli.installation import Installation
from duo.cli.problems import Problem
from tests.command import duo
from tests.unit.cli import runner


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's bandwidth is not measured, which takes seconds."""
    monkeypatch.setattr("duo.cli.installation.measure_bandwidth", lambda _: None)


def test_it_describes_this_installation() -> None:
    run = duo("doctor")
    assert run.stderr == ""
    rows = {line[:12].strip() for line in run.text.splitlines()}
    assert rows >= {"versions", "system", "CPU", "cores", "threads", "memory", "bandwidth", "backends", "device", "RPC"}
    assert "for a model of 4 GB" in " ".join(run.text.split())  # wrapped after the measured figures
    assert "\x1b" not in run.text
    for line in run.text.splitlines():
        assert len(line) <= 80 or line.startswith("      ") or "/" in line, "only commands and paths are longer"
    assert run.status == int("Problems, and" in run.text)


@pytest.mark.usefixtures("unmeasured")
def test_json_and_a_bad_environment(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "LLAMA_ARG_THREADS": "99",
        "DUO_CONFIG": f"{tmp_path}/file/config",
        "DUO_CACHE": "relative",
    }
    run = runner.duo("doctor", "--json", env=env)
    assert (run.status, run.stderr) == (1, "")
    document = json.loads(run.text)
    assert list(document) == [*Installation.__dataclass_fields__, "problems"]
    assert document["build"]["failure"] is None
    assert document["build"]["rpc"] == ("RPC" in document["build"]["backends"])
    assert document["threads"]["alone"] == document["cores"]["usable"]
    said = json.dumps(document["problems"])
    for words in ("unset OMP_WAIT_POLICY", "unset GOMP_SPINCOUNT", "unset LLAMA_ARG_THREADS", "export DUO_CONFIG="):
        assert words in said
    assert "LLAMA_ARG_THREADS=99 is more than" in said
    assert f"{tmp_path}/file is not a directory" in said
    assert "DUO_CACHE must be an absolute path" in said


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('libcuda.so.1: cannot open shared object file')", "libcuda.so.1: cannot open shared object"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "Illegal instruction"),
    ],
)
def test_a_llama_cpp_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    """It is loaded in another process, which the failure may end."""
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = runner.duo("doctor", "--json")
    assert (run.status, run.stderr) == (1, "")
    document = json.loads(run.text)
    (problem,) = [problem for problem in document["problems"] if problem["name"] == "load"]
    assert "llama.cpp cannot be loaded: " in problem["what"]
    assert said in problem["what"]
    assert "--no-binary llama-cpp-python" in problem["command"] or "make " in problem["command"]
    assert document["build"]["devices"] == []
    assert is_wrong([Problem(**problem) for problem in document["problems"]])


@pytest.mark.usefixtures("unmeasured")
def test_a_variable_without_which_llama_cpp_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that are set are tried one by one."""
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text(
        "import os, sys\n"
        "if 'GGML_OPENCL_PLATFORM' in os.environ: raise OSError('no such platform')\n"
        f"sys.path.remove({str(tmp_path)!r})\n"
        "del sys.modules['llama_cpp']\n"
        "import llama_cpp\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = runner.duo("doctor", "--json", env={"CUDA_VISIBLE_DEVICES": "9", "GGML_OPENCL_PLATFORM": "9"})
    document = json.loads(run.text)
    (problem,) = [problem for problem in document["problems"] if problem["name"] == "load"]
    assert problem["what"].endswith("no such platform; without GGML_OPENCL_PLATFORM=9, it can be loaded.")
    assert problem["command"] == "unset GGML_OPENCL_PLATFORM"
    assert document["environment"].items() >= {"CUDA_VISIBLE_DEVICES": "9", "GGML_OPENCL_PLATFORM": "9"}.items()
    assert document["hidden"] == {"variables": ["GGML_OPENCL_PLATFORM"], "devices": []}

"""`duo doctor` on this machine, and where llama.cpp cannot be loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from duo.cli.installation import Installation
from duo.cli.terminal.console import size_of
from duo.config import ModelConfig
from duo.diagnose.host import Bandwidth
from duo.llama.model import model_size
from tests.command import duo
from tests.gguf_files import tiny_llama, tiny_mixture
from tests.unit.cli import runner


def described(monkeypatch: pytest.MonkeyPatch, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What --json says, but for the memory's bandwidth, whose measurement takes seconds."""
    monkeypatch.setattr("duo.cli.installation.measure_bandwidth", lambda _: None)
    run = runner.duo("doctor", "--json", env=env)
    assert (run.status, run.stderr) == (1, "")
    return dict(json.loads(run.text))


def test_it_describes_this_installation() -> None:
    run = duo("doctor")
    assert run.stderr == ""
    lines = run.text.splitlines()
    rows = {"versions", "system", "CPU", "cores", "threads", "memory", "bandwidth", "backends", "device", "RPC"}
    assert rows <= {line[:12].strip() for line in lines}
    assert "for a dense model of 4 GB" in " ".join(run.text.split())  # wrapped after the measured figures
    assert "\x1b" not in run.text
    assert all(len(line) <= 80 or line.startswith("      ") or "/" in line for line in lines), "or a command or path"
    assert run.status == int("Problems, and" in run.text)


def test_json_and_a_bad_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    env = {
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "LLAMA_ARG_THREADS": "99",
        "DUO_CONFIG": f"{tmp_path}/file/config",
        "DUO_CACHE": "relative",
    }
    document = described(monkeypatch, env)
    assert list(document) == [*Installation.__dataclass_fields__, "mixtures", "problems"]
    assert document["build"]["failure"] is None
    assert document["build"]["rpc"] == ("RPC" in document["build"]["backends"])
    assert document["threads"]["alone"] == document["cores"]["usable"]
    said = json.dumps(document["problems"])
    for words in (*env, f"{tmp_path}/file is not a directory", "LLAMA_ARG_THREADS=99 is more than"):
        assert words in said


def test_doctor_does_not_import_llama_cpp_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end the process."""
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = duo("doctor", "--json")
    assert run.status == 1, run.stderr
    assert "Illegal instruction" in run.text


def test_of_a_mixture_of_experts_a_token_reads_only_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"DUO_CACHE": str(tmp_path), "HF_HUB_CACHE": str(tmp_path), "HOME": str(tmp_path)}
    tiny_llama(tmp_path / "dense.gguf")
    size = model_size(ModelConfig(tiny_mixture(tmp_path / "mixture.gguf", n_expert=8)))
    (found,) = described(monkeypatch, env)["mixtures"]
    assert (found["name"], found["expert_bytes"]) == ("mixture.gguf", sum(size.experts))
    assert found["token_bytes"] == sum(size.layers) + size.output - sum(size.experts) * 3 // 4  # two of eight
    bandwidth = Bandwidth(10e9, 4 * found["token_bytes"], 4)
    monkeypatch.setattr("duo.cli.installation.measure_bandwidth", lambda _: bandwidth)
    said = " ".join(runner.duo("doctor", env=env).text.split())
    experts, others, token = map(
        size_of, (found["expert_bytes"], found["bytes"] - found["expert_bytes"], found["token_bytes"])
    )
    assert (
        f"mixture mixture.gguf: {experts} of experts, {others} of the rest; a token reads {token}, at most 4.0" in said
    )


# What importing llama_cpp does, in another process, which the failure may end.
SIGNAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
VARIABLE = """
import os, sys
if 'GGML_OPENCL_PLATFORM' in os.environ: raise OSError('no such platform')
sys.path.remove({!r})
del sys.modules['llama_cpp']
import llama_cpp
"""
BUILDS = "--no-binary llama-cpp-python"


@pytest.mark.parametrize(
    ("code", "said", "commands"),
    [
        ("raise OSError('libcuda.so.1: cannot open')", "libcuda.so.1: cannot open", (BUILDS, "make ")),
        (SIGNAL, "Illegal instruction", (BUILDS, "make ")),
        # The variables that are set are tried one by one.
        (VARIABLE, "; without GGML_OPENCL_PLATFORM=9, it can be loaded.", ("unset GGML_OPENCL_PLATFORM",)),
    ],
    ids=["library", "signal", "variable"],
)
def test_a_llama_cpp_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str, commands: tuple[str, ...]
) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text(code.format(str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    env = {"CUDA_VISIBLE_DEVICES": "9", "GGML_OPENCL_PLATFORM": "9"} if code == VARIABLE else {}
    document = described(monkeypatch, env)
    (problem,) = [problem for problem in document["problems"] if problem["name"] == "load"]
    assert "llama.cpp cannot be loaded: " in problem["what"]
    assert said in problem["what"]
    assert any(command in problem["command"] for command in commands)
    assert document["build"]["devices"] == []
    assert document["environment"].items() >= env.items()
    assert document["hidden"] == ({"variables": ["GGML_OPENCL_PLATFORM"], "devices": []} if env else None)

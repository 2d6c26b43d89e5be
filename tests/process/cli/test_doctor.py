"""`duo doctor`: what it finds here, and what it would find elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duo.cli.commands.doctor import is_wrong, render, to_json
from duo.cli.installation import Build, Cores, DeviceFacts, Folder, Installation
from duo.cli.problems import Problem, find_problems
from duo.diagnose.bandwidth import Bandwidth
from duo.diagnose.host import Gpu, Host
from tests.command import ROOT, assert_refused, duo

CPU = DeviceFacts("CPU", "Some CPU", "CPU", 8 * 10**9, 16 * 10**9)
CARD = DeviceFacts("CUDA0", "NVIDIA A10", "GPU", 22 * 10**9, 24 * 10**9)
NVIDIA, AMD, APPLE = Gpu("NVIDIA", "NVIDIA A10"), Gpu("AMD", "AMD GPU"), Gpu("Apple", "Apple GPU")

HEALTHY = Installation(
    versions={"duo": "1.0", "Python": "3.12.1", "llama-cpp-python": "0.3.36", "llama.cpp": "b1", "numpy": "2.0"},
    tested_range=">=0.3.36,<0.3.37",
    host=Host("Linux", "x86_64", "6.1", "Some CPU", ("AVX", "AVX2"), (), 16 * 10**9, 8 * 10**9),
    cores=Cores(8, 8, None, 4),
    threads={"alone": 4, "target": 3, "draft": 1},
    bandwidth=Bandwidth(10e9, 40e9, 4),
    build=Build(None, "b1", ("RPC", "CPU"), (CPU,), ("AVX", "AVX2", "OPENMP"), rpc=True),
    optional={"huggingface_hub": "1.0"},
    folders={"config": Folder("/home/me/.config/duo"), "cache": Folder("/home/me/.cache/duo")},
    environment={},
)


def with_gpu(card: Gpu, *backends: str, devices: tuple[DeviceFacts, ...] = (CPU,), **more: Any) -> Installation:
    build = replace(HEALTHY.build, backends=(*backends, "CPU"), devices=devices, rpc="RPC" in backends, **more)
    return replace(HEALTHY, host=replace(HEALTHY.host, gpus=(card,)), build=build)


def only(here: Installation) -> Problem:
    (problem,) = find_problems(here)
    return problem


# Here


def test_it_describes_this_installation() -> None:
    run = duo("doctor")
    assert run.stderr == ""
    rows = {line[:12].strip() for line in run.text.splitlines()}
    assert rows >= {
        "versions",
        "system",
        "CPU",
        "cores",
        "threads",
        "memory",
        "bandwidth",
        "back ends",
        "device",
        "RPC",
    }
    assert "a model of 4 GB writes" in run.text
    assert "\x1b" not in run.text
    for line in run.text.splitlines():
        assert len(line) <= 80 or line.startswith("      ") or "/" in line, "only commands and paths are longer"
    assert run.status == int("Wrong, and" in run.text)


def test_json_says_the_same() -> None:
    run = duo("doctor", "--json")
    document = json.loads(run.text)
    assert run.status == is_wrong([Problem(**problem) for problem in document["problems"]])
    assert list(document) == [*Installation.__dataclass_fields__, "problems"]
    assert document["build"]["failure"] is None
    assert "CPU" in document["build"]["backends"]
    assert document["build"]["rpc"] == ("RPC" in document["build"]["backends"])
    assert document["bandwidth"]["one_thread"] > 0
    assert document["threads"]["alone"] == document["cores"]["usable"]
    assert document["folders"]["config"]["failure"] is None


def test_what_the_environment_does_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "LLAMA_ARG_THREADS": "99",
        "DUO_CONFIG": f"{tmp_path}/file/config",
        "DUO_CACHE": "relative",
    }
    run = duo("doctor", env=env)
    assert (run.status, run.stderr) == (1, "")
    for command in ("unset OMP_WAIT_POLICY", "unset GOMP_SPINCOUNT", "unset LLAMA_ARG_THREADS", 'export DUO_CONFIG="'):
        assert f"\n      {command}" in run.text
    assert "LLAMA_ARG_THREADS=99 is more than" in run.text
    assert f"{tmp_path}/file is not a folder" in run.text.replace("\n            ", " ")
    assert "DUO_CACHE must be an absolute path" in run.text


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    run = duo("doctor", "--json", env={"DUO_CACHE": str(tmp_path / "cache")})
    assert run.status == 1
    assert json.loads(run.text)["folders"]["cache"]["failure"] == f"{tmp_path} cannot be written"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('libcuda.so.1: cannot open shared object file')", "libcuda.so.1: cannot open shared object"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "Illegal instruction"),
        ("", "has no attribute"),
    ],
)
def test_a_llama_cpp_that_cannot_be_loaded(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text(code)
    run = duo("doctor", "--json", env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert (run.status, run.stderr) == (1, "")
    document = json.loads(run.text)
    (problem,) = [problem for problem in document["problems"] if problem["name"] == "load"]
    assert "llama.cpp cannot be loaded: " in problem["what"]
    assert said in problem["what"]
    assert "--no-binary llama-cpp-python" in problem["command"] or "make " in problem["command"]
    assert document["build"]["devices"] == []


def test_advice_does_not_change_the_status() -> None:
    hide = "import duo.cli.installation as here; here.version_of = lambda package: None"
    run = duo("doctor", "--json", before=hide)
    problems = json.loads(run.text)["problems"]
    assert "hub" in [problem["name"] for problem in problems if problem["advice"]]
    assert run.status == is_wrong([Problem(**problem) for problem in problems])
    assert is_wrong([Problem("a", "b"), Problem("c", "d", advice=True)])
    assert not is_wrong([Problem("c", "d", advice=True)])


def test_options_that_cannot_be_meant() -> None:
    assert_refused(duo("doctor", "-m", "model.gguf"), "No such option: -m", status=2)
    assert_refused(duo("-n", "3", "doctor"), "options of `duo doctor` stand after `doctor`", status=2)


# Elsewhere


def test_nothing_is_wrong() -> None:
    assert find_problems(HEALTHY) == []
    lines = render(HEALTHY, [])
    assert lines[-1] == "Nothing is wrong."
    assert "10.0 GB/s with one thread, 40.0 GB/s with 4" in "\n".join(lines)
    assert "at most 10.0 tokens/s" in " ".join(" ".join(lines).split())


def test_a_card_of_nvidia_and_no_cuda() -> None:
    problem = only(with_gpu(NVIDIA, "RPC"))
    assert not problem.advice
    assert problem.what.startswith("NVIDIA A10: llama.cpp was built without a GPU back end")
    assert "-DGGML_CUDA=on" in problem.command
    assert ("nvcc is not on the PATH" in problem.what) == (shutil.which("nvcc") is None)


def test_a_card_that_is_used_is_no_problem() -> None:
    assert find_problems(with_gpu(NVIDIA, "RPC", "CUDA", devices=(CARD, CPU), gpu=True)) == []


def test_one_build_mends_all_that_a_build_can_mend() -> None:
    without_rpc = with_gpu(NVIDIA, features=("AVX", "OPENMP"))
    problems = find_problems(without_rpc)
    assert [(problem.name, problem.advice) for problem in problems] == [
        ("instructions", False), ("gpu", False), ("rpc", True),
    ]  # fmt: skip
    assert len({problem.command for problem in problems}) == 1
    for flag in ("-DGGML_NATIVE=on", "-DGGML_CUDA=on"):
        assert flag in problems[0].command
    assert "AVX2" in problems[0].what
    lines = render(without_rpc, problems)
    assert lines.count(f"      {problems[0].command}") == 2, "once for what is wrong, once for advice"


def test_a_build_without_rpc_is_advice() -> None:
    here = replace(HEALTHY, build=replace(HEALTHY.build, backends=("CPU",), rpc=False))
    problem = only(here)
    assert problem.advice
    assert "--rpc" in problem.what
    assert "RPC" in problem.command or "make " in problem.command
    assert render(here, [problem])[-1] == "Nothing is wrong."


def test_other_gpus() -> None:
    apple, amd = only(with_gpu(APPLE, "RPC")), only(with_gpu(AMD, "RPC"))
    assert ("-DGGML_METAL=on" in apple.command, apple.advice) == (True, False)
    assert ("-DGGML_VULKAN=on" in amd.command, amd.advice) == (True, True)


def test_cuda_where_vulkan_does_it() -> None:
    problem = only(with_gpu(NVIDIA, "RPC", "Vulkan", devices=(CARD, CPU), gpu=True))
    assert (problem.name, problem.advice) == ("cuda", True)
    assert "-DGGML_VULKAN=on -DGGML_CUDA=on" in problem.command, "and keeps Vulkan"


@pytest.mark.parametrize(
    ("environment", "command"),
    [({"CUDA_VISIBLE_DEVICES": ""}, "unset CUDA_VISIBLE_DEVICES"), ({}, "nvidia-smi")],
)
def test_a_card_that_the_build_does_not_find(environment: dict[str, str], command: str) -> None:
    problem = only(replace(with_gpu(NVIDIA, "RPC", "CUDA"), environment=environment))
    assert (problem.name, problem.command, problem.advice) == ("driver", command, False)


def test_another_llama_cpp_than_duo_was_tested_with() -> None:
    problem = only(replace(HEALTHY, versions=HEALTHY.versions | {"llama-cpp-python": "0.4.0"}))
    assert problem.name == "version"
    assert "0.4.0 is here; duo was tested with >=0.3.36,<0.3.37" in problem.what


def test_little_memory_and_no_figure_for_it() -> None:
    low = replace(HEALTHY, host=replace(HEALTHY.host, memory_available=10**8), bandwidth=None)
    assert (only(low).name, only(low).advice) == ("memory", False)
    assert "not measured" in "\n".join(render(low, [only(low)]))
    unknown = replace(HEALTHY, host=replace(HEALTHY.host, memory_available=None))
    assert find_problems(unknown) == []
    assert "memory      16.0 GB, unknown available" in render(unknown, [])


@pytest.mark.parametrize("threads", ["5", "many"])
def test_threads_in_the_environment(threads: str) -> None:
    problem = only(replace(HEALTHY, environment={"LLAMA_ARG_THREADS": threads}))
    assert (problem.name, problem.command) == ("threads", "unset LLAMA_ARG_THREADS")
    assert find_problems(replace(HEALTHY, environment={"LLAMA_ARG_THREADS": "4"})) == []


def test_openmp_is_no_matter_to_a_build_without_it() -> None:
    here = replace(HEALTHY, environment={"OMP_WAIT_POLICY": "passive"})
    assert only(here).name == "openmp"
    assert find_problems(replace(here, build=replace(here.build, features=("AVX", "AVX2")))) == []


def test_hugging_face_is_optional() -> None:
    problem = only(replace(HEALTHY, optional={"huggingface_hub": None}))
    assert (problem.name, problem.advice) == ("hub", True)
    assert problem.command.endswith("-m pip install 'huggingface_hub>=0.30'")


def test_json_has_all_that_is_printed() -> None:
    problems = find_problems(with_gpu(NVIDIA))
    document = json.loads(to_json(with_gpu(NVIDIA), problems))
    assert [problem["name"] for problem in document["problems"]] == ["gpu", "rpc"]
    assert document["host"]["gpus"] == [{"vendor": "NVIDIA", "name": "NVIDIA A10"}]
    assert document["build"]["devices"][0]["memory_free"] == 8 * 10**9

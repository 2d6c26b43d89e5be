"""`duo doctor`: the problems that it finds in a description of an installation, and their problems."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duo.cli import problems
from duo.cli.commands.doctor import is_wrong, render, to_json
from duo.cli.installation import Build, Cores, DeviceFacts, Folder, Hidden, Installation
from duo.cli.problems import find_problems
from duo.diagnose.host import Bandwidth, Gpu, Host, read_host
from duo.llama.build import GPU_BACKENDS
from tests.command import ROOT

CPU = DeviceFacts("CPU", "Some CPU", "CPU", 8 * 10**9, 16 * 10**9)
CARD = DeviceFacts("CUDA0", "NVIDIA A10", "GPU", 22 * 10**9, 24 * 10**9)
NVIDIA, AMD, APPLE = Gpu("NVIDIA", "NVIDIA A10"), Gpu("AMD", "AMD GPU"), Gpu("Apple", "Apple GPU")

HEALTHY = Installation(
    versions={"duo": "1.0", "Python": "3.12.1", "llama-cpp-python": "0.3.36", "llama.cpp": "b1", "numpy": "2.0"},
    tested_range=">=0.3.36,<0.3.37",
    host=Host("Linux", "x86_64", "6.1", "Some CPU", ("AVX", "AVX2"), (), 16 * 10**9, 8 * 10**9),
    cores=Cores(8, 8, None, 4),
    threads={"alone": 4, "target": 3, "draft": 1},
    load=0.2,
    bandwidth=Bandwidth(10e9, 40e9, 4),
    build=Build(None, "b1", ("RPC", "CPU"), (CPU,), ("AVX", "AVX2", "OPENMP"), rpc=True),
    hidden=None,
    optional={"huggingface_hub": "1.0"},
    folders={"config": Folder("/home/me/.config/duo"), "cache": Folder("/home/me/.cache/duo")},
    environment={},
)


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if installed by pip, also in the environment that the Makefile creates."""
    monkeypatch.setattr(problems, "_checkout", lambda: None)


def with_gpu(card: Gpu, *backends: str, devices: tuple[DeviceFacts, ...] = (CPU,), **more: Any) -> Installation:
    more = {"gpu_backends": tuple(name for name in backends if name in GPU_BACKENDS)} | more
    build = replace(HEALTHY.build, backends=(*backends, "CPU"), devices=devices, rpc="RPC" in backends, **more)
    return replace(HEALTHY, host=replace(HEALTHY.host, gpus=(card,)), build=build)


def change(**fields: Any) -> Installation:
    """HEALTHY with these fields; a dict is merged into what the field has."""
    merged = {
        name: replace(getattr(HEALTHY, name), **value) if name in ("host", "build") else value
        for name, value in fields.items()
    }
    return replace(HEALTHY, **merged)


def without_gpu(*backends: str) -> Installation:
    """A build with these back ends that finds no GPU, on a machine that shows none, such as a container."""
    return replace(with_gpu(NVIDIA, "RPC", *backends), host=HEALTHY.host)


def hidden_by(installation: Installation, **variables: str) -> Installation:
    """With these variables set, without which it finds CARD."""
    return replace(installation, hidden=Hidden(tuple(variables), (CARD,)), environment=variables)


def test_a_healthy_installation() -> None:
    assert find_problems(HEALTHY) == []
    lines = render(HEALTHY, [])
    assert lines[-1] == "No problems found."
    assert "10.0 GB/s with one thread, 40.0 GB/s with 4" in "\n".join(lines)
    assert "at most 10.0 tokens/s" in " ".join(" ".join(lines).split())
    unknown = change(host={"memory_available": None}, bandwidth=None)
    assert find_problems(unknown) == []
    assert "memory      16.0 GB, unknown available" in render(unknown, [])
    assert "not measured" in "\n".join(render(unknown, []))
    for other in (
        with_gpu(NVIDIA, "RPC", "CUDA", devices=(CARD, CPU), gpu=True),
        with_gpu(NVIDIA, "RPC", "Vulkan", "CUDA", devices=(CARD, CPU), gpu=True),  # one of them finds it
        replace(with_gpu(NVIDIA, "RPC", "CUDA", devices=(CARD,), gpu=True), environment={"CUDA_VISIBLE_DEVICES": "1"}),
        change(environment={"CUDA_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}),  # a build without GPUs
        change(environment={"LLAMA_ARG_THREADS": "4"}),
        change(environment={"OMP_WAIT_POLICY": "passive"}, build={"features": ("AVX", "AVX2")}),  # without OpenMP
    ):
        assert find_problems(other) == []


@pytest.mark.parametrize(
    ("installation", "name", "advice", "said", "command"),
    [
        (with_gpu(NVIDIA, "RPC"), "gpu", False, "NVIDIA A10: llama.cpp was built without", "-DGGML_CUDA=on"),
        (with_gpu(APPLE, "RPC"), "gpu", False, "", "-DGGML_METAL=on"),
        (with_gpu(AMD, "RPC"), "gpu", True, "", "-DGGML_VULKAN=on"),
        (
            with_gpu(NVIDIA, "RPC", "Vulkan", devices=(CARD, CPU), gpu=True),
            *("cuda", True, "", "-DGGML_VULKAN=on -DGGML_CUDA=on"),
        ),
        (with_gpu(NVIDIA, "RPC", "CUDA"), "driver", False, "", "nvidia-smi"),
        (
            hidden_by(with_gpu(NVIDIA, "RPC", "CUDA"), CUDA_VISIBLE_DEVICES=""),
            *(
                "hidden",
                False,
                "A10: llama.cpp was built with CUDA but finds no GPU: CUDA_VISIBLE_DEVICES='' hides CUDA0",
            ),
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (
            hidden_by(without_gpu("ROCm"), HIP_VISIBLE_DEVICES="9", ROCR_VISIBLE_DEVICES="9"),
            *("hidden", False, "HIP_VISIBLE_DEVICES=9 and ROCR_VISIBLE_DEVICES=9 hide CUDA0, NVIDIA A10"),
            "unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES",
        ),
        (with_gpu(NVIDIA, "RPC", "Vulkan"), "driver", False, "A10: llama.cpp was built with Vulkan but", "vulkaninfo"),
        (without_gpu("Vulkan"), "driver", False, "llama.cpp was built with Vulkan but finds no GPU. ", "vulkaninfo"),
        (without_gpu("CUDA", "Vulkan"), "driver", False, "with CUDA, Vulkan", "nvidia-smi; vulkaninfo --summary"),
        (
            replace(without_gpu("SYCL"), environment={"ZE_AFFINITY_MASK": "9", "CUDA_VISIBLE_DEVICES": "1"}),
            *("driver", False, "finds no GPU, also without ZE_AFFINITY_MASK=9. Check the driver:", "sycl-ls"),
        ),
        (
            change(build={"gpu_backends": ("Vulkan",), "messages": ("ggml_vulkan: bad index.", "more")}),
            *("driver", False, 'llama.cpp says: "ggml_vulkan: bad index."', "vulkaninfo --summary"),
        ),
        (change(build={"failure": "exit status 1"}), "load", False, "cannot be loaded: exit status 1", "install"),
        (
            hidden_by(change(build={"failure": "no such platform"}), GGML_OPENCL_PLATFORM="9"),
            *("load", False, "no such platform; without GGML_OPENCL_PLATFORM=9, it can be loaded."),
            "unset GGML_OPENCL_PLATFORM",
        ),
        (change(build={"backends": ("CPU",), "rpc": False}), "rpc", True, "--rpc", "RPC"),
        (change(versions=HEALTHY.versions | {"llama-cpp-python": "0.4.0"}), "version", None, "0.4.0", "0.3.36"),
        (change(host={"memory_available": 10**8}), "memory", False, "", ""),
        (change(load=1.3), "busy", True, "Other programs used 1.3 cores in the last minute", "ps -A"),
        (change(environment={"LLAMA_ARG_THREADS": "5"}), "threads", None, "", "unset LLAMA_ARG_THREADS"),
        (change(environment={"LLAMA_ARG_THREADS": "many"}), "threads", None, "", "unset LLAMA_ARG_THREADS"),
        (change(environment={"OMP_WAIT_POLICY": "passive"}), "openmp", None, "", "unset OMP_WAIT_POLICY"),
        (change(optional={"huggingface_hub": None}), "hub", True, "", "-m pip install 'huggingface_hub>=0.30'"),
    ],
)
def test_a_problem(installation: Installation, name: str, advice: bool | None, said: str, command: str) -> None:
    (problem,) = find_problems(installation)
    assert problem.name == name
    assert said in problem.what
    assert command in problem.command
    if advice is not None:
        assert problem.advice == advice
        assert (render(installation, [problem])[-1] == "No problems found.") == advice
        assert is_wrong([problem]) != advice
    if name == "gpu" and "CUDA" in command:
        assert ("nvcc is not in PATH" in problem.what) == (shutil.which("nvcc") is None)


def test_one_build_command_fixes_everything_that_a_build_can_fix() -> None:
    without_rpc = with_gpu(NVIDIA, features=("AVX", "OPENMP"))
    wrong = find_problems(without_rpc)
    found = [(problem.name, problem.advice) for problem in wrong]
    assert found == [("instructions", False), ("gpu", False), ("rpc", True)]
    assert len({problem.command for problem in wrong}) == 1
    for flag in ("-DGGML_NATIVE=on", "-DGGML_CUDA=on"):
        assert flag in wrong[0].command
    assert "AVX2" in wrong[0].what
    lines = render(without_rpc, wrong)
    assert lines.count(f"      {wrong[0].command}") == 2, "once for what is wrong, once for advice"


def test_back_ends_that_did_not_start_and_variables_are_shown() -> None:
    here = change(
        build={"gpu_backends": ("Vulkan",)}, environment={"GGML_VK_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "0"}
    )
    lines = render(here, find_problems(here))
    assert "backends    RPC, CPU, Vulkan (not started)" in lines
    assert "variables   GGML_VK_VISIBLE_DEVICES='', ZE_AFFINITY_MASK=0" in lines
    assert "GPU layers  no: this build finds no GPU" in lines
    assert not any(line.startswith("variables") for line in render(HEALTHY, []))


@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_every_gpu_back_end_has_a_command_that_checks_its_driver(backend: str) -> None:
    (problem,) = find_problems(without_gpu(backend))
    assert problem.name == "driver"
    assert problem.command
    assert ("llvmpipe" in problem.what) == (backend == "Vulkan")


def test_a_back_end_that_did_not_start_is_kept_by_the_next_build() -> None:
    here = change(build={"gpu_backends": ("Vulkan",), "rpc": False, "backends": ("CPU",)})
    (command,) = [problem.command for problem in find_problems(here) if problem.name == "rpc"]
    assert flags(command) == {"-DGGML_VULKAN=on", "-DGGML_RPC=on"}


def test_json_has_all_that_is_printed() -> None:
    document = json.loads(to_json(with_gpu(NVIDIA), find_problems(with_gpu(NVIDIA))))
    assert [problem["name"] for problem in document["problems"]] == ["gpu", "rpc"]
    assert document["host"]["gpus"] == [{"vendor": "NVIDIA", "name": "NVIDIA A10"}]
    assert document["build"]["devices"][0]["memory_free"] == 8 * 10**9


# Remedies


def flags(command: str) -> set[str]:
    """What CMAKE_ARGS says in it."""
    (setting,) = [word for word in shlex.split(command) if word.startswith("CMAKE_ARGS=")]
    return set(setting.partition("=")[2].split())


def test_a_build_with_a_feature_keeps_those_that_the_build_has() -> None:
    words = shlex.split(problems.build_with("RPC", backends=["CPU"]))
    for word in ("--force-reinstall", "--no-deps", "--no-cache-dir"):
        assert word in words
    assert words[words.index("--no-binary") + 1] == "llama-cpp-python"
    assert words[-1].startswith("llama-cpp-python==")
    for features, backends, expected in (
        (["RPC"], ["CPU"], {"RPC"}),
        (["RPC"], ["CUDA", "ROCm", "CPU", "something new"], {"CUDA", "HIP", "RPC"}),
        (["CUDA", "RPC"], ["RPC"], {"CUDA", "RPC"}),
    ):
        command = problems.build_with(*features, backends=backends)
        assert flags(command) == {f"-DGGML_{name}=on" for name in expected}
    assert "-DGGML_CUDA=on" in flags(problems.build_with("CUDA")), "and those of this build"


@pytest.mark.parametrize(
    ("vendor", "flag"), [("NVIDIA", "CUDA"), ("Apple", "METAL"), ("AMD", "VULKAN"), ("Intel", "VULKAN")]
)
def test_the_back_end_for_a_gpu(vendor: str, flag: str) -> None:
    best = problems.best_backend(replace(read_host(), gpus=(Gpu("Intel", "integrated"), Gpu(vendor, "a card"))))
    assert best is not None
    assert flags(problems.build_with(best, backends=["RPC"])) == {"-DGGML_RPC=on", f"-DGGML_{flag}=on"}
    assert problems.best_backend(replace(read_host(), gpus=())) is None


def test_in_a_checkout_the_makefile_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    make = f"make -C {ROOT}"
    built = problems.build_with("CUDA", "RPC", backends=[])
    assert built == f'{make} clean && {make} CMAKE_ARGS="-DGGML_CUDA=on" demo'
    assert problems.build_with("RPC", backends=[]) == f"{make} clean && {make} demo", "it asks for RPC itself"


def test_commands_name_the_python_that_runs_duo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    if (Path(sys.executable).parent / "python").samefile(sys.executable):
        monkeypatch.setattr(sys, "executable", str(Path(sys.executable).parent / "python"))
        assert problems.python() == "python"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert problems.python() == shlex.quote(sys.executable)


def test_in_an_archive_nothing_can_be_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    built = problems.build_with("CUDA", "RPC", backends=[])
    assert built == 'in a clone of duo: make CMAKE_ARGS="-DGGML_CUDA=on" demo'

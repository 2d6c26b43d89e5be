"""`duo doctor`: the problems that it finds in a description of an installation, and the commands that fix them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from duo.cli import problems
from duo.cli.commands.doctor import is_wrong, render
from duo.cli.installation import Build, Cores, DeviceFacts, Folder, Hidden, Installation
from duo.cli.problems import find_problems
from duo.diagnose.host import Bandwidth, Gpu, Host
from duo.llama.build import GPU_BACKENDS
from tests.command import ROOT

CPU = DeviceFacts("CPU", "Some CPU", "CPU", 8 * 10**9, 16 * 10**9)
CARD = DeviceFacts("CUDA0", "NVIDIA A10", "GPU", 22 * 10**9, 24 * 10**9)
NVIDIA, AMD = Gpu("NVIDIA", "NVIDIA A10"), Gpu("AMD", "AMD GPU")

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
def no_checkout() -> Iterator[None]:
    """As if installed by pip, also in the environment that the Makefile creates."""
    with mock.patch.object(sys, "prefix", "/usr"):
        yield


def change(**fields: Any) -> Installation:
    """HEALTHY with these fields; a dict is merged into what the field has."""
    for name in {"host", "build"} & set(fields):
        fields[name] = replace(getattr(HEALTHY, name), **fields[name])
    return replace(HEALTHY, **fields)


def gpu(card: Gpu | None, *backends: str, finds: bool = False, **more: Any) -> Installation:
    """On a machine with this card, or one that shows none; a build with these back ends, RPC and the CPU's."""
    cards = (card,) if card else ()
    build = {"backends": ("RPC", *backends, "CPU"), "gpu_backends": backends, "gpu": finds}
    return change(host={"gpus": cards}, build=build | {"devices": (CARD, CPU) if finds else (CPU,)} | more)


def hidden(installation: Installation, **variables: str) -> Installation:
    """With these variables set, without which it finds CARD."""
    return replace(installation, hidden=Hidden(tuple(variables), (CARD,)), environment=variables)


def flags(command: str) -> set[str]:
    """What CMAKE_ARGS says in it."""
    (setting,) = [word for word in shlex.split(command) if word.startswith("CMAKE_ARGS=")]
    return set(setting.partition("=")[2].split())


@pytest.mark.parametrize(
    "installation",
    [
        HEALTHY,
        change(host={"memory_available": None}, bandwidth=None),
        replace(gpu(NVIDIA, "CUDA", finds=True), environment={"CUDA_VISIBLE_DEVICES": "1"}),
        change(environment={"CUDA_VISIBLE_DEVICES": "", "LLAMA_ARG_THREADS": "4"}),
        change(environment={"OMP_WAIT_POLICY": "passive"}, build={"features": ("AVX", "AVX2")}),  # without OpenMP
    ],
)
def test_nothing_is_wrong(installation: Installation) -> None:
    assert find_problems(installation) == []
    assert render(installation, [])[-1] == "No problems found."


def test_what_is_shown() -> None:
    lines = " ".join(" ".join(render(HEALTHY, [])).split())
    assert re.search(r"10\.0 GB/s with one thread, 40\.0 GB/s with 4.* at most 10\.0 tokens/s", lines)
    variables = {"GGML_VK_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "0"}
    here = change(build={"gpu_backends": ("Vulkan",)}, environment=variables, bandwidth=None)
    found = render(here, find_problems(here))
    assert {
        "backends    RPC, CPU, Vulkan (not started)",
        "variables   GGML_VK_VISIBLE_DEVICES='', ZE_AFFINITY_MASK=0",
        "GPU layers  no: this build finds no GPU",
        "bandwidth   not measured: too little free memory",
    } <= {*found}


@pytest.mark.parametrize(
    ("installation", "name", "advice", "said", "command"),
    [
        (gpu(NVIDIA), "gpu", False, "NVIDIA A10: llama.cpp was built without", "-DGGML_CUDA=on"),
        (gpu(AMD), "gpu", True, "", "-DGGML_VULKAN=on"),
        (gpu(NVIDIA, "Vulkan", finds=True), "cuda", True, "", "-DGGML_VULKAN=on -DGGML_CUDA=on"),
        *((gpu(None, name), "driver", False, f"with {name} but finds no GPU. ", "") for name in GPU_BACKENDS),
        (gpu(NVIDIA, "CUDA", "Vulkan"), "driver", False, "with CUDA, Vulkan", "nvidia-smi; vulkaninfo --summary"),
        (
            hidden(gpu(None, "ROCm"), HIP_VISIBLE_DEVICES="9", ROCR_VISIBLE_DEVICES="9"),
            *("hidden", False, "HIP_VISIBLE_DEVICES=9 and ROCR_VISIBLE_DEVICES=9 hides CUDA0, NVIDIA A10", "unset HIP"),
        ),
        (
            replace(gpu(None, "SYCL"), environment={"ZE_AFFINITY_MASK": "9", "CUDA_VISIBLE_DEVICES": "1"}),
            *("driver", False, "finds no GPU, also without ZE_AFFINITY_MASK=9. Check the driver:", "sycl-ls"),
        ),
        (
            gpu(None, "Vulkan", messages=("ggml_vulkan: bad index.", "more")),
            *("driver", False, 'llama.cpp says: "ggml_vulkan: bad index."', "vulkaninfo --summary"),
        ),
        (change(build={"failure": "exit status 1"}), "load", False, "cannot be loaded: exit status 1", "install"),
        (
            hidden(change(build={"failure": "no such platform"}), GGML_OPENCL_PLATFORM="9"),
            *("load", False, "no such platform; without GGML_OPENCL_PLATFORM=9, it can be loaded.", "unset GGML"),
        ),
        (change(build={"backends": ("CPU",), "rpc": False}), "rpc", True, "--rpc", "-DGGML_RPC=on"),
        (change(versions=HEALTHY.versions | {"llama-cpp-python": "0.4.0"}), "version", False, "0.4.0", "0.3.36"),
        (change(host={"memory_available": 10**8}), "memory", False, "", ""),
        (change(load=1.3), "busy", True, "Other programs used 1.3 cores in the last minute", "ps -A"),
        (change(environment={"LLAMA_ARG_THREADS": "5"}), "threads", False, "", "unset LLAMA_ARG_THREADS"),
        (change(environment={"OMP_WAIT_POLICY": "passive"}), "openmp", False, "", "unset OMP_WAIT_POLICY"),
        (change(optional={"huggingface_hub": None}), "hub", True, "", "-m pip install 'huggingface_hub>=0.30'"),
    ],
)
def test_a_problem(installation: Installation, name: str, advice: bool, said: str, command: str) -> None:
    (problem,) = find_problems(installation)
    assert (problem.name, problem.advice) == (name, advice)
    assert said in problem.what
    assert problem.command
    assert command in problem.command
    assert (render(installation, [problem])[-1] == "No problems found.") == advice
    assert is_wrong([problem]) != advice


def test_one_build_command_fixes_everything_that_a_build_can_fix() -> None:
    here = gpu(NVIDIA, rpc=False, backends=("CPU",), features=("AVX", "OPENMP"))
    wrong = find_problems(here)
    found = [(problem.name, problem.advice) for problem in wrong]
    assert found == [("instructions", False), ("gpu", False), ("rpc", True)]
    assert flags(wrong[0].command) == {"-DGGML_NATIVE=on", "-DGGML_CUDA=on", "-DGGML_RPC=on"}
    assert {problem.command for problem in wrong} == {wrong[0].command}
    assert render(here, wrong).count(f"      {wrong[0].command}") == 2, "once for what is wrong, once for advice"
    stopped = gpu(None, "Vulkan", rpc=False, backends=("CPU",))
    assert flags(find_problems(stopped)[-1].command) == {"-DGGML_VULKAN=on", "-DGGML_RPC=on"}, (
        "a back end that did not start is kept"
    )


def test_the_command_that_builds() -> None:
    command = problems.build_with("RPC", backends=["CUDA", "ROCm", "CPU", "something new"])
    assert flags(command) == {"-DGGML_CUDA=on", "-DGGML_HIP=on", "-DGGML_RPC=on"}
    words = shlex.split(command)
    assert {"--force-reinstall", "--no-deps", "--no-cache-dir"} < set(words)
    assert words[words.index("--no-binary") + 1] == "llama-cpp-python"
    assert words[-1].startswith("llama-cpp-python>=")
    with mock.patch.object(sys, "prefix", str(ROOT / ".venv")):
        make = f"make -C {ROOT}"
        assert problems.build_with("CUDA", backends=[]) == f'{make} clean && {make} CMAKE_ARGS="-DGGML_CUDA=on" demo'
        assert problems.build_with("RPC", backends=[]) == f"{make} clean && {make} demo", "it asks for RPC itself"
    with mock.patch.object(sys, "frozen", True, create=True):
        assert problems.build_with("CUDA", backends=[]) == 'in a clone of duo: make CMAKE_ARGS="-DGGML_CUDA=on" demo'

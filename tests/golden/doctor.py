"""Installations, and what `duo doctor` says about them: `python -m tests.golden` writes doctor.txt anew."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from duo.cli.commands.doctor import find_problems, is_wrong, render
from duo.cli.installation import Build, Cores, DeviceFacts, Folder, Hidden, Installation
from duo.diagnose.host import Bandwidth, Gpu, Host
from duo.llama.build import GPU_BACKENDS
from duo.llama.limits import Limit

DOCTOR = Path(__file__).with_name("doctor.txt")

_CPU = DeviceFacts("CPU", "Some CPU", "CPU", 8 * 10**9, 16 * 10**9)
_CARD = DeviceFacts("CUDA0", "NVIDIA A10", "GPU", 22 * 10**9, 24 * 10**9)
_NVIDIA, _AMD = Gpu("NVIDIA", "NVIDIA A10"), Gpu("AMD", "AMD GPU")

HEALTHY = Installation(
    versions={"duo": "1.0", "Python": "3.12.1", "llama-cpp-python": "0.3.36", "llama.cpp": "b1", "numpy": "2.0"},
    tested_range=">=0.3.36,<0.3.37",
    host=Host("Linux", "x86_64", "6.1", "Some CPU", ("AVX", "AVX2"), (), 16 * 10**9, 8 * 10**9),
    cores=Cores(8, 8, None, 4),
    limits={"cpu": None, "memory": None},
    threads={"alone": 4, "target": 3, "draft": 1},
    load=0.2,
    bandwidth=Bandwidth(10e9, 40e9, 4),
    build=Build(None, "b1", ("RPC", "CPU"), (_CPU,), ("AVX", "AVX2", "OPENMP"), rpc=True),
    hidden=None,
    optional={"huggingface_hub": "1.0"},
    folders={"config": Folder("/home/me/.config/duo"), "cache": Folder("/home/me/.cache/duo")},
    environment={},
)


def _change(**fields: Any) -> Installation:
    """HEALTHY with these fields; a dict is merged into what the field has."""
    for name in {"host", "build"} & set(fields):
        fields[name] = replace(getattr(HEALTHY, name), **fields[name])
    return replace(HEALTHY, **fields)


def _gpu(card: Gpu | None, *backends: str, finds: bool = False, **more: Any) -> Installation:
    """On a machine with this card, or one that shows none; a build with these back ends, RPC and the CPU's."""
    cards = (card,) if card else ()
    build = {"backends": ("RPC", *backends, "CPU"), "gpu_backends": backends, "gpu": finds}
    return _change(host={"gpus": cards}, build=build | {"devices": (_CARD, _CPU) if finds else (_CPU,)} | more)


def _hidden(installation: Installation, **variables: str) -> Installation:
    """With these variables set, without which it finds a card."""
    return replace(installation, hidden=Hidden(tuple(variables), (_CARD,)), environment=variables)


_LIMITS = {
    "cpu": Limit(0.5, "/sys/fs/cgroup/cpu/system.slice"), "memory": Limit(4e9, "/sys/fs/cgroup/system.slice/a.service"),
}  # fmt: skip
_ALONE = {"alone": 1, "target": 1, "draft": 1}
_NO_CARD, _STOPPED = {"gpu_backends": ("Vulkan",)}, {"GGML_VK_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "0"}
WHOLE = {
    "healthy": HEALTHY,
    "what one build can fix": _gpu(_NVIDIA, rpc=False, backends=("CPU",), features=("AVX", "OPENMP")),
    "a service with limits": _change(limits=_LIMITS, cores=Cores(8, 8, 0.5, 1), threads=_ALONE),
    "a back end that was not started": _change(build=_NO_CARD, environment=_STOPPED, bandwidth=None),
}
NOTHING_WRONG = (
    _change(host={"memory_available": None}, bandwidth=None),
    replace(_gpu(_NVIDIA, "CUDA", finds=True), environment={"CUDA_VISIBLE_DEVICES": "1"}),
    _change(environment={"CUDA_VISIBLE_DEVICES": "", "LLAMA_ARG_THREADS": "4"}),
    _change(environment={"OMP_WAIT_POLICY": "passive"}, build={"features": ("AVX", "AVX2")}),  # without OpenMP
)
PROBLEMS = (
    _gpu(_NVIDIA),
    _gpu(_AMD),
    _gpu(_NVIDIA, "Vulkan", finds=True),
    *(_gpu(None, name) for name in GPU_BACKENDS),
    _gpu(_NVIDIA, "CUDA", "Vulkan"),
    _gpu(None, "Vulkan", rpc=False, backends=("CPU",)),  # one that was not started is kept
    _hidden(_gpu(None, "ROCm"), HIP_VISIBLE_DEVICES="9", ROCR_VISIBLE_DEVICES="9"),
    replace(_gpu(None, "SYCL"), environment={"ZE_AFFINITY_MASK": "9", "CUDA_VISIBLE_DEVICES": "1"}),
    _gpu(None, "Vulkan", messages=("ggml_vulkan: bad index.", "more")),
    _change(build={"failure": "exit status 1"}),
    _hidden(_change(build={"failure": "no such platform"}), GGML_OPENCL_PLATFORM="9"),
    _change(build={"backends": ("CPU",), "rpc": False}),
    _change(versions=HEALTHY.versions | {"llama-cpp-python": "0.4.0"}),
    _change(host={"memory_available": 10**8}),
    _change(load=1.3),
    _change(environment={"LLAMA_ARG_THREADS": "5"}),
    _change(environment={"OMP_WAIT_POLICY": "passive"}),
    _change(optional={"huggingface_hub": None}),
)


def doctor() -> str:
    """All of it, as if duo were installed by pip."""
    pip: Any = {"pip_install": lambda: "python -m pip install"}
    replaced: Any = {"tested_range": lambda: HEALTHY.tested_range, **pip}
    with (
        mock.patch.object(sys, "prefix", "/usr"),
        mock.patch.multiple("duo.cli.installation", **replaced),
        mock.patch.multiple("duo.models.hub", **pip),
    ):
        return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for name, installation in WHOLE.items():
        yield from (f"# {name}", *render(installation, find_problems(installation)), "")
    assert not any(map(find_problems, NOTHING_WRONG))
    yield "# Problems"
    for installation in PROBLEMS:
        found = find_problems(installation)
        for each in found:
            yield f"{each.name}{' (advice)' * each.advice}: {each.what}\n    {each.command}"
        assert is_wrong(found) != all(each.advice for each in found)

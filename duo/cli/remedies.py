"""The exact commands that mend an installation."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import duo
from duo.engine.host import AMD, APPLE, INTEL, NVIDIA, Host, read_host

LLAMA = "llama-cpp-python"
NATIVE = "native"  # all that this processor can do
RPC, CUDA, METAL, VULKAN = "RPC", "CUDA", "MTL", "Vulkan"  # back ends, as llama.cpp writes them
# What llama.cpp's build is told for each.
_FLAGS = {
    RPC: "GGML_RPC",
    CUDA: "GGML_CUDA",
    METAL: "GGML_METAL",
    VULKAN: "GGML_VULKAN",
    "ROCm": "GGML_HIP",
    "MUSA": "GGML_MUSA",
    "SYCL": "GGML_SYCL",
    "OpenCL": "GGML_OPENCL",
    "BLAS": "GGML_BLAS",
    NATIVE: "GGML_NATIVE",
}
GPU_BACKENDS = frozenset(_FLAGS) - {RPC, NATIVE, "BLAS"}
# Fastest for each, or simplest to build.
_BACKENDS = {NVIDIA: CUDA, APPLE: METAL, AMD: VULKAN, INTEL: VULKAN}


def build_with(*features: str, backends: Iterable[str] | None = None) -> str:
    """The command that builds llama-cpp-python with `features` and the back ends it has (None: this build's).

    `features` are RPC, NATIVE or GPU_BACKENDS. In a checkout whose own environment this is, the Makefile does it.
    """
    if backends is None:
        from duo.llama.backends import list_backends  # noqa: PLC0415 - llama.cpp may be what has to be mended

        backends = list_backends()
    wanted = dict.fromkeys([*(name for name in backends if name in _FLAGS), *features])
    flags = [f"-D{_FLAGS[name]}=on" for name in wanted]
    if folder := _checkout():
        # The Makefile asks for RPC itself.
        flags = [flag for flag in flags if "RPC" not in flag]
        build = f'CMAKE_ARGS="{" ".join(flags)}" ' if flags else ""
        make = f"make -C {shlex.quote(str(folder))}"
        return f"{make} clean && {make} {build}demo"
    build = f'CMAKE_ARGS="{" ".join(flags)}" ' if flags else ""
    # pip's wheel cache does not ask how a wheel was built.
    fresh = f"--force-reinstall --no-deps --no-cache-dir --no-binary {LLAMA}"
    return f'{_ensure_pip()}{build}{python()} -m pip install {fresh} "{_package()}"'


def build_for_gpu(host: Host | None = None, backends: Iterable[str] | None = None) -> str:
    """The command that builds for the GPU that is here; for CUDA where none is seen."""
    return build_with(best_backend(host or read_host()) or CUDA, backends=backends)


def best_backend(host: Host) -> str | None:
    """The back end for the GPU that the machine has; None if it has none."""
    vendors = [vendor for vendor in _BACKENDS if any(gpu.vendor == vendor for gpu in host.gpus)]
    return _BACKENDS[vendors[0]] if vendors else None


def install(package: str) -> str:
    """The command that installs `package` beside duo."""
    return f"{_ensure_pip()}{python()} -m pip install {shlex.quote(package)}"


def python() -> str:
    """How this interpreter is called in a shell."""
    found = shutil.which("python")
    # Not resolved: in a virtual environment it is a link to that of the system.
    return "python" if found and Path(found).absolute() == Path(sys.executable) else shlex.quote(sys.executable)


def tested_range() -> str | None:
    """The versions of llama-cpp-python that duo asks for, as `>=1.2,<1.3`; None if duo is not installed."""
    try:
        wanted = requires("duo-llm") or []
    except PackageNotFoundError:
        return None
    found = [match for line in wanted if (match := re.match(rf"{LLAMA}\s*\(?([<>=!~\d.,\s]+)", line))]
    return ",".join(sorted(found[0][1].replace(" ", "").split(","), reverse=True)) if found else None


def is_within(number: str, wanted: str) -> bool:
    """Whether the version `number` is in a range such as `>=1.2,<1.3`."""
    tests = {">=": int.__ge__, "<=": int.__le__, "==": int.__eq__, ">": int.__gt__, "<": int.__lt__}
    for operator, limit in re.findall(r"(>=|<=|==|>|<)([\d.]+)", wanted):
        if not tests[operator](_compare(_numbers(number), _numbers(limit)), 0):
            return False
    return True


def _compare(one: Sequence[int], other: Sequence[int]) -> int:
    return (tuple(one) > tuple(other)) - (tuple(one) < tuple(other))


def _numbers(number: str) -> list[int]:
    """`0.3.36.post1` is 0, 3, 36; trailing zeros say nothing."""
    found = re.match(r"[\d.]*\d", number)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def _package() -> str:
    """The version that is here if duo was tested with it, else those it was."""
    wanted = tested_range()
    try:
        here = version(LLAMA)
    except PackageNotFoundError:
        return LLAMA + (wanted or "")
    return f"{LLAMA}=={here}" if not wanted or is_within(here, wanted) else LLAMA + wanted


def _checkout() -> Path | None:
    """The folder with the Makefile that made this environment, if one did."""
    folder = Path(duo.__file__).parents[1]
    return folder if (folder / "Makefile").is_file() and Path(sys.prefix) == folder / ".venv" else None


def _ensure_pip() -> str:
    return "" if importlib.util.find_spec("pip") else f"{python()} -m ensurepip && "

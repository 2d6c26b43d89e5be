"""The exact commands that mend an installation."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import duo
from duo.diagnose.host import AMD, APPLE, INTEL, NVIDIA, Host

LLAMA = "llama-cpp-python"
NATIVE = "native"  # all that this processor can do
RPC, CUDA, METAL, VULKAN = "RPC", "CUDA", "MTL", "Vulkan"  # back ends, as llama.cpp writes them
# What llama.cpp's build is told for each.
_FLAGS = {
    RPC: "GGML_RPC", CUDA: "GGML_CUDA", METAL: "GGML_METAL", VULKAN: "GGML_VULKAN", "ROCm": "GGML_HIP",
    "MUSA": "GGML_MUSA", "SYCL": "GGML_SYCL", "OpenCL": "GGML_OPENCL", "BLAS": "GGML_BLAS", NATIVE: "GGML_NATIVE",
}  # fmt: skip
GPU_BACKENDS = frozenset(_FLAGS) - {RPC, NATIVE, "BLAS"}
# Fastest for each, or simplest to build.
_BACKENDS = {NVIDIA: CUDA, APPLE: METAL, AMD: VULKAN, INTEL: VULKAN}


def build_with(*features: str, backends: Iterable[str] | None = None) -> str:
    """The command that builds llama-cpp-python with `features` and the back ends it has (None: this build's).

    `features` are RPC, NATIVE or GPU_BACKENDS. In a checkout whose own environment this is, the Makefile does it.
    """
    if backends is None:
        from duo.llama.devices import list_backends  # noqa: PLC0415 - llama.cpp may be what has to be mended

        backends = list_backends()
    folder = _checkout()  # its Makefile asks for RPC itself
    wanted = dict.fromkeys([*(name for name in backends if name in _FLAGS), *features])
    flags = " ".join(f"-D{_FLAGS[name]}=on" for name in wanted if not (folder and name == RPC))
    build = f'CMAKE_ARGS="{flags}" ' if flags else ""
    if folder:
        make = f"make -C {shlex.quote(str(folder))}"
        return f"{make} clean && {make} {build}demo"
    # pip's wheel cache does not ask how a wheel was built.
    fresh = f"--force-reinstall --no-deps --no-cache-dir --no-binary {LLAMA}"
    return f'{_ensure_pip()}{build}{python()} -m pip install {fresh} "{_package()}"'


def best_backend(host: Host) -> str | None:
    """The back end for the GPU that the machine has; None if it has none."""
    vendors = {gpu.vendor for gpu in host.gpus}
    return next((backend for vendor, backend in _BACKENDS.items() if vendor in vendors), None)


def install(package: str) -> str:
    """The command that installs `package` beside duo."""
    return f"{_ensure_pip()}{python()} -m pip install {shlex.quote(package)}"


def python() -> str:
    """How this interpreter is called in a shell."""
    found = shutil.which("python")
    # Not resolved: in a virtual environment it is a link to that of the system.
    return "python" if found and Path(found).absolute() == Path(sys.executable) else shlex.quote(sys.executable)


def version_of(package: str) -> str | None:
    """The version of a package that is here; None if none is."""
    return next((found.version for found in distributions(name=package)), None)


def tested_range() -> str | None:
    """The versions of llama-cpp-python that duo asks for, as `>=1.2,<1.3`; None if duo is not installed."""
    wanted = (Requirement(line) for found in distributions(name="duo-llm") for line in found.requires or ())
    ranges = (sorted(map(str, package.specifier), reverse=True) for package in wanted if package.name == LLAMA)
    return next((",".join(parts) for parts in ranges), None)


def is_within(number: str, wanted: str | None) -> bool:
    """Whether the version `number` is in a range such as `>=1.2,<1.3`."""
    return SpecifierSet(wanted or "").contains(number, prereleases=True)


def _package() -> str:
    """The version that is here if duo was tested with it, else those it was."""
    wanted, here = tested_range(), version_of(LLAMA)
    return f"{LLAMA}=={here}" if here and is_within(here, wanted) else LLAMA + (wanted or "")


def _checkout() -> Path | None:
    """The folder with the Makefile that made this environment, if one did."""
    folder = Path(duo.__file__).parents[1]
    return folder if (folder / "Makefile").is_file() and Path(sys.prefix) == folder / ".venv" else None


def _ensure_pip() -> str:
    return "" if importlib.util.find_spec("pip") else f"{python()} -m ensurepip && "

"""The commands that fix an installation."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

import duo
from duo.diagnose.host import AMD, APPLE, INTEL, NVIDIA, Host
from duo.llama.child import is_frozen

LLAMA = "llama-cpp-python"
NATIVE = "native"  # all instruction sets of this CPU
RPC, CUDA, METAL, VULKAN = "RPC", "CUDA", "MTL", "Vulkan"  # backends, as llama.cpp names them
# The CMake option of each.
_FLAGS = {
    RPC: "GGML_RPC", CUDA: "GGML_CUDA", METAL: "GGML_METAL", VULKAN: "GGML_VULKAN", "ROCm": "GGML_HIP",
    "MUSA": "GGML_MUSA", "SYCL": "GGML_SYCL", "OpenCL": "GGML_OPENCL", "CANN": "GGML_CANN", "BLAS": "GGML_BLAS",
    NATIVE: "GGML_NATIVE",
}  # fmt: skip
# The fastest, or the simplest to build, by vendor.
_BACKENDS = {NVIDIA: CUDA, APPLE: METAL, AMD: VULKAN, INTEL: VULKAN}


def build_with(*features: str, backends: Iterable[str] | None = None) -> str:
    """The command that builds llama-cpp-python with `features` in addition to `backends` (None: those of this build).

    `features` are RPC, NATIVE or GPU back ends. In the environment that the Makefile of a checkout made, it uses make;
    in an archive, the command is for a clone.
    """
    if backends is None:
        from duo.llama.build import built_gpu_backends  # noqa: PLC0415 - llama.cpp may not be loadable
        from duo.llama.devices import list_backends  # noqa: PLC0415

        backends = [*list_backends(), *built_gpu_backends()]
    checkout = _checkout()
    wanted = dict.fromkeys([*(name for name in backends if name in _FLAGS), *features])
    # The Makefile adds RPC.
    flags = " ".join(f"-D{_FLAGS[name]}=on" for name in wanted if not ((checkout or is_frozen()) and name == RPC))
    build = f'CMAKE_ARGS="{flags}" ' if flags else ""
    if is_frozen():  # nothing in an archive can be rebuilt
        return f"in a clone of duo: make {build}demo"
    if checkout:
        make = f"make -C {shlex.quote(str(checkout))}"
        return f"{make} clean && {make} {build}demo"
    # pip's cache of wheels ignores CMAKE_ARGS.
    fresh = f"--force-reinstall --no-deps --no-cache-dir --no-binary {LLAMA}"
    wanted_range, number = tested_range(), version_of(LLAMA)
    version = f"=={number}" if number and is_within(number, wanted_range) else wanted_range or ""
    return f'{_ensure_pip()}{build}{python()} -m pip install {fresh} "{LLAMA}{version}"'


def best_backend(host: Host) -> str | None:
    """The backend for the GPU of the machine; None without a GPU."""
    vendors = {gpu.vendor for gpu in host.gpus}
    return next((backend for vendor, backend in _BACKENDS.items() if vendor in vendors), None)


def install(package: str) -> str:
    """The command that installs a package."""
    return f"{_ensure_pip()}{python()} -m pip install {shlex.quote(package)}"


def python() -> str:
    """The shell command for this interpreter."""
    found = shutil.which("python")
    # Not resolved: in a virtual environment it is a link.
    return "python" if found and Path(found).absolute() == Path(sys.executable) else shlex.quote(sys.executable)


def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    return next((found.version for found in distributions(name=package)), None)


def tested_range() -> str | None:
    """The versions of llama-cpp-python that duo requires, such as `>=1.2,<1.3`; None if duo is not installed."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - slow, and only for advice

    wanted = (Requirement(line) for found in distributions(name="duo-llm") for line in found.requires or ())
    ranges = (sorted(map(str, package.specifier), reverse=True) for package in wanted if package.name == LLAMA)
    return next((",".join(parts) for parts in ranges), None)


def is_within(number: str, wanted: str | None) -> bool:
    """Whether version `number` is in a range such as `>=1.2,<1.3`."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415

    return SpecifierSet(wanted or "").contains(number, prereleases=True)


def _checkout() -> Path | None:
    """The checkout whose Makefile made this environment, if one did."""
    folder = Path(duo.__file__).parents[1]
    return folder if (folder / "Makefile").is_file() and Path(sys.prefix) == folder / ".venv" else None


def _ensure_pip() -> str:
    return "" if importlib.util.find_spec("pip") else f"{python()} -m ensurepip && "

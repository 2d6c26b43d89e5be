"""The problems of an installation, and the commands that fix them."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duo
from duo.cli.installation import LLAMA, SLOWING, Installation, tested_range
from duo.diagnose.host import AMD, APPLE, INTEL, NVIDIA, Host
from duo.errors import DeviceError
from duo.llama.build import GPU_BACKENDS, is_frozen

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
_PIP = f"{shlex.quote(sys.executable)} -m pip install"
_BUSY = 0.5  # cores in use by other programs, from which a run is slower
_MIN_MEMORY = 1_000_000_000  # the demo pair needs about half of it
# The commands that show what the driver of a back end finds.
_CHECKS = {
    CUDA: "nvidia-smi", VULKAN: "vulkaninfo --summary", METAL: "system_profiler SPDisplaysDataType", "ROCm": "rocminfo",
    "SYCL": "sycl-ls", "OpenCL": "clinfo", "MUSA": "mthreads-gmi", "CANN": "npu-smi info",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, or with `advice`, something that could be better."""

    name: str
    what: str
    command: str
    advice: bool = False


def find_problems(here: Installation) -> list[Problem]:
    """All problems, advice last."""
    rebuilt = list(_build(here))
    # One build with all features, so that no command undoes another.
    features = filter(None, (problem.command for problem in rebuilt))
    command = build_with(*features, backends=[*here.build.backends, *here.build.gpu_backends])
    found = [replace(problem, command=command) for problem in rebuilt]
    return sorted([*found, *_others(here)], key=lambda problem: problem.advice)


def _build(here: Installation) -> Iterator[Problem]:
    """What another build of llama.cpp fixes, with the feature that it needs for a command."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - slow, and only for advice

    build, number, best = here.build, here.versions[LLAMA], best_backend(here.host) or ""
    if number and not SpecifierSet(here.tested_range or "").contains(number, prereleases=True):
        what = f"{LLAMA} {number} is installed, but duo was tested with {here.tested_range}."
        yield Problem("version", what, "")
    if build.failure:
        if not here.hidden:
            yield Problem("load", f"llama.cpp cannot be loaded: {build.failure}", best)
        return
    if unused := [name for name in here.host.instructions if name not in build.features]:
        what = f"llama.cpp was built without {', '.join(unused)}, which this CPU supports: it is slower than necessary."
        yield Problem("instructions", what, NATIVE)
    names = ", ".join(gpu.name for gpu in here.host.gpus)
    if best and not build.gpu_backends:
        what = f"{names}: llama.cpp was built without a GPU backend, so everything runs on the CPU."
        # Others are often integrated into the CPU, share its memory and are seldom faster.
        discrete = any(gpu.vendor in (NVIDIA, APPLE) for gpu in here.host.gpus)
        yield Problem("gpu", what, best, advice=not discrete)
    elif best == CUDA and build.gpu and CUDA not in build.gpu_backends:
        what = f"{names}: llama.cpp uses it through {', '.join(build.gpu_backends)}; CUDA is usually faster."
        yield Problem("cuda", what, best, advice=True)
    if not build.rpc:
        what = "llama.cpp was built without RPC: devices of other machines (--rpc) cannot be used."
        yield Problem("rpc", what, RPC, advice=True)


def _others(here: Installation) -> Iterator[Problem]:
    """What needs no other build."""
    build, hidden, variables, n_cores = here.build, here.hidden, here.environment, here.cores.usable
    no_gpu = f"llama.cpp was built with {', '.join(build.gpu_backends)} but finds no GPU"
    if hidden:
        found = ", ".join(f"{device.name}, {device.description}" for device in hidden.devices)
        named, unset = values_of(variables, hidden.variables), f"unset {' '.join(hidden.variables)}"
        if build.failure:
            what = f"llama.cpp cannot be loaded: {build.failure}; without {named}, it can be loaded."
            yield Problem("load", what, unset)
        else:
            yield Problem("hidden", f"{no_gpu}: {named} hides {found}.", unset)
    elif build.gpu_backends and not build.gpu:
        yield _driver(here, no_gpu)
    for name in SLOWING:
        if variables.get(name) and (not build.features or "OPENMP" in build.features):
            what = f"{name}={variables[name]} is set: it can make every decode several times slower."
            yield Problem("openmp", what, f"unset {name}")
    threads = variables.get("LLAMA_ARG_THREADS", "")
    if threads.isdecimal() and float(threads) > n_cores:  # int() refuses thousands of digits
        what = f"LLAMA_ARG_THREADS={threads} is more than the {n_cores} usable cores: threads wait for each other."
        yield Problem("threads", what, "unset LLAMA_ARG_THREADS")
    free = here.host.memory_available
    if free is not None and free < _MIN_MEMORY:
        what = f"Only {free / 1e9:.1f} GB of memory are available for models. To list the largest processes:"
        yield Problem("memory", what, "ps -A -o rss,pid,comm | sort -rn | head")
    if here.load >= _BUSY:
        what = f"Other programs used {here.load:.1f} cores in the last minute: everything is slower. To list them:"
        yield Problem("busy", what, "ps -A -o pcpu,pid,comm | sort -rn | head", advice=True)
    for name, folder in here.folders.items():
        if folder.failure:
            what = f"The {name} directory cannot be used: {folder.failure}"
            yield Problem(f"{name}_folder", what, f'export DUO_{name.upper()}="$HOME/duo-{name}"')
    if here.optional["huggingface_hub"] is None:
        what = "huggingface_hub is not installed: -hf and -hfd do not work."
        yield Problem("hub", what, f"{_PIP} 'huggingface_hub>=0.30'", advice=True)


def _driver(here: Installation, what: str) -> Problem:
    """A build for GPUs that finds none, for no reason that is known here."""
    backends = here.build.gpu_backends
    names = dict.fromkeys(name for backend in backends for name in GPU_BACKENDS[backend])
    if tried := [name for name in names if name in here.environment]:
        what += f", also without {values_of(here.environment, tried)}"
    what += "".join(f'. llama.cpp says: "{line}"' for line in here.build.messages[:1])
    if VULKAN in backends:
        what += ". A Vulkan device of the type CPU, such as llvmpipe, is used only if GGML_VK_VISIBLE_DEVICES names it"
    return Problem("driver", f"{what}. Check the driver:", "; ".join(_CHECKS[name] for name in backends))


def values_of(variables: Mapping[str, str], names: Iterable[str]) -> str:
    """The settings of these variables, as a shell has them."""
    return " and ".join(f"{name}={shlex.quote(variables[name])}" for name in names)


def build_with(*features: str, backends: Iterable[str] | None = None) -> str:
    """The command that builds llama-cpp-python with `features` in addition to `backends` (None: those of this build).

    `features` are RPC, NATIVE or GPU back ends. In the environment that the Makefile of a checkout made, it uses make;
    in an archive, the command is for a clone.
    """
    if backends is None:
        from duo.llama.devices import built_gpu_backends, list_backends  # noqa: PLC0415 - llama.cpp may not be loadable

        backends = [*list_backends(), *built_gpu_backends()]
    folder = Path(duo.__file__).parents[1]
    is_checkout = (folder / "Makefile").is_file() and Path(sys.prefix) == folder / ".venv"
    by_make = is_checkout or is_frozen()  # which adds RPC
    wanted = dict.fromkeys([*(name for name in backends if name in _FLAGS), *features])
    flags = " ".join(f"-D{_FLAGS[name]}=on" for name in wanted if not (by_make and name == RPC))
    build = f'CMAKE_ARGS="{flags}" ' if flags else ""
    if is_frozen():  # nothing in an archive can be rebuilt
        return f"in a clone of duo: make {build}demo"
    if is_checkout:
        make = f"make -C {shlex.quote(str(folder))}"
        return f"{make} clean && {make} {build}demo"
    # pip's cache of wheels ignores CMAKE_ARGS.
    fresh = f"--force-reinstall --no-deps --no-cache-dir --no-binary {LLAMA}"
    return f'{build}{_PIP} {fresh} "{LLAMA}{tested_range() or ""}"'


def require_rpc() -> None:
    """Raise DeviceError if llama.cpp was built without RPC."""
    from duo.llama.library import supports_rpc  # noqa: PLC0415 - llama.cpp may not be loadable

    if not supports_rpc():
        raise DeviceError(f"llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")


def best_backend(host: Host) -> str | None:
    """The backend for the GPU of the machine; None without a GPU."""
    vendors = {gpu.vendor for gpu in host.gpus}
    return next((backend for vendor, backend in _BACKENDS.items() if vendor in vendors), None)

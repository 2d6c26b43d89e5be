"""The problems of an installation, and the commands that fix them."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from duo.cli import remedies
from duo.cli.installation import SLOWING, Hidden, Installation
from duo.cli.remedies import CUDA, LLAMA, METAL, VULKAN, best_backend
from duo.diagnose.host import APPLE, NVIDIA
from duo.llama.build import GPU_BACKENDS

_MAX_DIGITS = 40  # of a number; Python refuses to convert thousands
_MIN_MEMORY = 1_000_000_000  # the demo pair needs about half of it
# The commands that show what the driver of a back end finds.
_CHECKS = {
    CUDA: "nvidia-smi", VULKAN: "vulkaninfo --summary", METAL: "system_profiler SPDisplaysDataType", "ROCm": "rocminfo",
    "SYCL": "sycl-ls", "OpenCL": "clinfo", "MUSA": "mthreads-gmi", "CANN": "npu-smi info",
}  # fmt: skip
_COMPILERS = {CUDA: ("nvcc", "NVIDIA's CUDA toolkit"), VULKAN: ("glslc", "the Vulkan SDK")}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, or with `advice`, something that could be better."""

    name: str
    what: str
    command: str = ""
    advice: bool = False


def find_problems(here: Installation) -> list[Problem]:
    """All problems, advice last."""
    missing = list(_build(here))
    # One build with all features, so that no command undoes another.
    features = (feature for feature, _ in missing if feature)
    command = remedies.build_with(*features, backends=[*here.build.backends, *here.build.gpu_backends])
    found = [replace(problem, command=problem.command or command) for _, problem in missing]
    found += [*_gpu(here), *_environment(here), *_machine(here)]
    return sorted(found, key=lambda problem: problem.advice)


def _build(here: Installation) -> Iterator[tuple[str | None, Problem]]:
    """What another build of llama.cpp fixes, with the feature that it needs; the command is added later."""
    build, best, number, wanted = here.build, best_backend(here.host), here.versions[LLAMA], here.tested_range
    if number and wanted and not remedies.is_within(number, wanted):
        what = f"{LLAMA} {number} is installed, but duo was tested with {wanted}: other versions may be incompatible."
        yield None, Problem("version", what)
    if build.failure:
        yield _unloadable(here, best)
        return
    if unused := [name for name in here.host.instructions if name not in build.features]:
        what = f"llama.cpp was built without {', '.join(unused)}, which this CPU supports: it is slower than necessary."
        yield remedies.NATIVE, Problem("instructions", what)
    names, usable = _gpus(here)
    if best and not usable:
        what = f"{names}: llama.cpp was built without a GPU backend, so everything runs on the CPU."
        # Others are often integrated into the CPU, share its memory and are seldom faster.
        discrete = any(gpu.vendor in (NVIDIA, APPLE) for gpu in here.host.gpus)
        yield best, Problem("gpu", what + _needs(best), advice=not discrete)
    elif best == CUDA and build.gpu and CUDA not in build.gpu_backends:
        what = f"{names}: llama.cpp uses it through {usable}; CUDA is usually faster."
        yield best, Problem("cuda", what + _needs(best), advice=True)
    if not build.rpc:
        what = "llama.cpp was built without RPC: devices of other machines (--rpc) cannot be used."
        yield remedies.RPC, Problem("rpc", what, advice=True)


def _unloadable(here: Installation, best: str | None) -> tuple[str | None, Problem]:
    what = f"llama.cpp cannot be loaded: {here.build.failure}"
    if here.hidden:
        without = f"{what}; without {_assigned(here, here.hidden.variables)}, it can be loaded."
        return None, Problem("load", without, _unset(here.hidden))
    return best, Problem("load", what)


def _gpu(here: Installation) -> Iterator[Problem]:
    """A build for GPUs that finds none."""
    build, hidden = here.build, here.hidden
    if build.gpu or not build.gpu_backends:
        return
    names, built = _gpus(here)
    what = f"{names}: " * bool(names) + f"llama.cpp was built with {built} but finds no GPU"
    if hidden:
        found = ", ".join(f"{device.name}, {device.description}" for device in hidden.devices)
        hides = "hides" if len(hidden.variables) == 1 else "hide"
        yield Problem("hidden", f"{what}: {_assigned(here, hidden.variables)} {hides} {found}.", _unset(hidden))
        return
    all_variables = dict.fromkeys(name for backend in build.gpu_backends for name in GPU_BACKENDS[backend].variables)
    if tried := [name for name in all_variables if name in here.environment]:
        what += f", also without {_assigned(here, tried)}"
    what += "".join(f'. llama.cpp says: "{line}"' for line in build.messages[:1])
    if VULKAN in build.gpu_backends:
        what += ". A Vulkan device of the type CPU, such as llvmpipe, is used only if GGML_VK_VISIBLE_DEVICES names it"
    look = "; ".join(_CHECKS[name] for name in build.gpu_backends)
    yield Problem("driver", f"{what}. Check the driver:", look)


def _gpus(here: Installation) -> tuple[str, str]:
    """The names of the GPUs, and of the backends for them."""
    return ", ".join(gpu.name for gpu in here.host.gpus), ", ".join(here.build.gpu_backends)


def _assigned(here: Installation, names: Iterable[str]) -> str:
    return " and ".join(f"{name}={shlex.quote(here.environment[name])}" for name in names)


def _unset(hidden: Hidden) -> str:
    return f"unset {' '.join(hidden.variables)}"


def _needs(backend: str) -> str:
    program, package = _COMPILERS.get(backend, ("", ""))
    return f" Install {package} first: {program} is not in PATH." if program and not shutil.which(program) else ""


def _environment(here: Installation) -> Iterator[Problem]:
    variables, n_cores = here.environment, here.cores.usable
    for name in SLOWING:
        if variables.get(name) and (not here.build.features or "OPENMP" in here.build.features):
            what = f"{name}={variables[name]} is set: it can make every decode several times slower."
            yield Problem("openmp", what, f"unset {name}")
    threads = variables.get("LLAMA_ARG_THREADS") or "1"
    wrong = "" if threads.isdecimal() and len(threads) < _MAX_DIGITS else "not a number"
    if not wrong and int(threads) > n_cores:
        wrong = f"more than the {n_cores} usable cores: threads wait for each other"
    if wrong:
        yield Problem("threads", f"LLAMA_ARG_THREADS={threads} is {wrong}.", "unset LLAMA_ARG_THREADS")


def _machine(here: Installation) -> Iterator[Problem]:
    free = here.host.memory_available
    if free is not None and free < _MIN_MEMORY:
        what = f"Only {free / 1e9:.1f} GB of memory are available for models. To list the largest processes:"
        yield Problem("memory", what, "ps -A -o rss,pid,comm | sort -rn | head")
    for name, folder in here.folders.items():
        if folder.failure:
            what = f"The {name} directory cannot be used: {folder.failure}"
            yield Problem(f"{name}_folder", what, f'export DUO_{name.upper()}="$HOME/duo-{name}"')
    if here.optional["huggingface_hub"] is None:
        what = "huggingface_hub is not installed: -hf and -hfd do not work."
        yield Problem("hub", what, remedies.install("huggingface_hub>=0.30"), advice=True)

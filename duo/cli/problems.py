"""The problems of an installation, and the commands that fix them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

from duo.cli import remedies
from duo.cli.installation import SLOWING, Installation
from duo.cli.remedies import CUDA, GPU_BACKENDS, LLAMA, VULKAN, best_backend
from duo.diagnose.host import APPLE, NVIDIA

_MAX_DIGITS = 40  # of a number; Python refuses to convert thousands
_MIN_MEMORY = 1_000_000_000  # the demo pair needs about half of it
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
    command = remedies.build_with(*(feature for feature, _ in missing if feature), backends=here.build.backends)
    found = [*(replace(problem, command=command) for _, problem in missing), *_environment(here), *_machine(here)]
    return sorted(found, key=lambda problem: problem.advice)


def _build(here: Installation) -> Iterator[tuple[str | None, Problem]]:
    """What another build of llama.cpp fixes, with the feature that it needs; the command is added later."""
    build, best, number, wanted = here.build, best_backend(here.host), here.versions[LLAMA], here.tested_range
    if number and wanted and not remedies.is_within(number, wanted):
        what = f"{LLAMA} {number} is installed, but duo was tested with {wanted}: other versions may be incompatible."
        yield None, Problem("version", what)
    if build.failure:
        yield best, Problem("load", f"llama.cpp cannot be loaded: {build.failure}")
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
    elif best == CUDA and CUDA not in usable:
        what = f"{names}: llama.cpp uses it through {usable}; CUDA is usually faster."
        yield best, Problem("cuda", what + _needs(best), advice=True)
    if not build.rpc:
        what = "llama.cpp was built without RPC: devices of other machines (--rpc) cannot be used."
        yield remedies.RPC, Problem("rpc", what, advice=True)


def _gpus(here: Installation) -> tuple[str, str]:
    """The names of the GPUs, and of the backends for them."""
    backends = sorted(GPU_BACKENDS & set(here.build.backends))
    return ", ".join(gpu.name for gpu in here.host.gpus), ", ".join(backends)


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
    names, usable = _gpus(here)
    if usable and names and not here.build.gpu:
        look = "nvidia-smi" if best_backend(here.host) == CUDA else "vulkaninfo --summary"
        hidden = "CUDA_VISIBLE_DEVICES" in variables
        why = "CUDA_VISIBLE_DEVICES hides it" if hidden else "check the driver"
        what = f"{names}: llama.cpp was built with {usable} but finds no GPU: {why}."
        yield Problem("driver", what, "unset CUDA_VISIBLE_DEVICES" if hidden else look)


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

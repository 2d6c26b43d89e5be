"""What is wrong with an installation, and the command that mends it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

from duo.cli import remedies
from duo.cli.installation import SLOWING, Installation
from duo.cli.remedies import CUDA, GPU_BACKENDS, LLAMA, VULKAN, best_backend
from duo.diagnose.host import APPLE, NVIDIA

_LEAST_MEMORY = 1_000_000_000  # the demo pair takes about half of it
_COMPILERS = {CUDA: ("nvcc", "NVIDIA's CUDA toolkit"), VULKAN: ("glslc", "the Vulkan SDK")}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or with `advice`, that could be better."""

    name: str
    what: str
    command: str = ""
    advice: bool = False


def find_problems(here: Installation) -> list[Problem]:
    """All of them, the wrong ones first."""
    lacking = list(_lacking(here))
    # One command for all that another build of llama.cpp mends, so that none undoes another.
    command = remedies.build_with(*(feature for feature, _ in lacking if feature), backends=here.build.backends)
    found = [*(replace(problem, command=command) for _, problem in lacking), *_environment(here), *_machine(here)]
    return sorted(found, key=lambda problem: problem.advice)


def _lacking(here: Installation) -> Iterator[tuple[str | None, Problem]]:
    """What another build of llama.cpp mends, each with the feature to build with; the command is still to come."""
    build, best, number, wanted = here.build, best_backend(here.host), here.versions[LLAMA], here.tested_range
    if number and wanted and not remedies.is_within(number, wanted):
        what = f"{LLAMA} {number} is here; duo was tested with {wanted}, and what it reads moves between releases."
        yield None, Problem("version", what)
    if build.failure:
        yield best, Problem("load", f"llama.cpp cannot be loaded: {build.failure}")
        return
    if unused := [name for name in here.host.instructions if name not in build.features]:
        what = f"llama.cpp was built without {', '.join(unused)}, which this CPU has: it is slower than it could be."
        yield remedies.NATIVE, Problem("instructions", what)
    names, there = _gpus(here)
    if best and not there:
        what = f"{names}: llama.cpp was built without a GPU back end, so that everything runs on the CPU."
        # Others may be a processor's own, which share its memory and seldom compute faster.
        surely = any(gpu.vendor in (NVIDIA, APPLE) for gpu in here.host.gpus)
        yield best, Problem("gpu", what + _needs(best), advice=not surely)
    elif best == CUDA and CUDA not in there:
        what = f"{names}: llama.cpp uses it through {there}; CUDA is usually faster."
        yield best, Problem("cuda", what + _needs(best), advice=True)
    if not build.rpc:
        what = "llama.cpp was built without RPC: the devices of other machines (--rpc) cannot be used."
        yield remedies.RPC, Problem("rpc", what, advice=True)


def _gpus(here: Installation) -> tuple[str, str]:
    """The names of the GPUs, and of the back ends for them."""
    backends = sorted(GPU_BACKENDS & set(here.build.backends))
    return ", ".join(gpu.name for gpu in here.host.gpus), ", ".join(backends)


def _needs(backend: str) -> str:
    """What has to be installed before the build."""
    program, package = _COMPILERS.get(backend, ("", ""))
    return f" Install {package} first: {program} is not on the PATH." if program and not shutil.which(program) else ""


def _environment(here: Installation) -> Iterator[Problem]:
    set_here, n_cores = here.environment, here.cores.usable
    for name in SLOWING:
        if set_here.get(name) and (not here.build.features or "OPENMP" in here.build.features):
            what = f"{name}={set_here[name]} is set: it can make every decode several times slower."
            yield Problem("openmp", what, f"unset {name}")
    threads = set_here.get("LLAMA_ARG_THREADS") or "1"
    many = f"more than the {n_cores} usable cores: threads wait for each other"
    wrong = "no number of threads" if not threads.isdecimal() else many if int(threads) > n_cores else ""
    if wrong:
        yield Problem("threads", f"LLAMA_ARG_THREADS={threads} is {wrong}.", "unset LLAMA_ARG_THREADS")
    names, there = _gpus(here)
    if there and names and not here.build.gpu:
        look = "nvidia-smi" if best_backend(here.host) == CUDA else "vulkaninfo --summary"
        hidden = "CUDA_VISIBLE_DEVICES" in set_here
        why = "CUDA_VISIBLE_DEVICES hides it" if hidden else "does the driver work?"
        what = f"{names}: llama.cpp was built with {there} and finds no GPU: {why}."
        yield Problem("driver", what, "unset CUDA_VISIBLE_DEVICES" if hidden else look)


def _machine(here: Installation) -> Iterator[Problem]:
    left = here.host.memory_available
    if left is not None and left < _LEAST_MEMORY:
        what = f"Only {left / 1e9:.1f} GB of memory are left, and every model has to fit. The largest programs are:"
        yield Problem("memory", what, "ps -A -o rss,pid,comm | sort -rn | head")
    for name, folder in here.folders.items():
        if folder.failure:
            what = f"The {name} folder cannot be used: {folder.failure}"
            yield Problem(f"{name}_folder", what, f'export DUO_{name.upper()}="$HOME/duo-{name}"')
    if here.optional["huggingface_hub"] is None:
        what = "huggingface_hub is not installed: -hf and -hfd do not work."
        yield Problem("hub", what, remedies.install("huggingface_hub>=0.30"), advice=True)

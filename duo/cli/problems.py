"""What is wrong with an installation, and the command that mends it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

from duo.cli.installation import SLOWING, Installation
from duo.cli.remedies import (
    CUDA,
    GPU_BACKENDS,
    LLAMA,
    NATIVE,
    RPC,
    VULKAN,
    best_backend,
    build_with,
    install,
    is_within,
)
from duo.engine.host import APPLE, NVIDIA

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
    found = [*_build(here), *_environment(here), *_machine(here)]
    return sorted(found, key=lambda problem: problem.advice)


def _build(here: Installation) -> Iterator[Problem]:
    """What another build of llama.cpp mends; one command for all of it, so that none undoes another."""
    found = list(_lacking(here))
    command = build_with(*(feature for feature, _ in found if feature), backends=here.build.backends)
    for _, problem in found:
        yield replace(problem, command=command)


def _lacking(here: Installation) -> Iterator[tuple[str | None, Problem]]:
    """Each with the feature to build with; the commands are still to come."""
    build, number, wanted = here.build, here.versions[LLAMA], here.tested_range
    if number and wanted and not is_within(number, wanted):
        what = f"{LLAMA} {number} is here; duo was tested with {wanted}, and what it reads moves between releases."
        yield None, Problem("version", what)
    if build.failure:
        yield best_backend(here.host), Problem("load", f"llama.cpp cannot be loaded: {build.failure}")
        return
    if unused := [name for name in here.host.instructions if name not in build.features]:
        what = f"llama.cpp was built without {', '.join(unused)}, which this CPU has: it is slower than it could be."
        yield NATIVE, Problem("instructions", what)
    yield from _gpu(here)
    if not build.rpc:
        what = "llama.cpp was built without RPC: the devices of other machines (--rpc) cannot be used."
        yield RPC, Problem("rpc", what, advice=True)


def _gpu(here: Installation) -> Iterator[tuple[str, Problem]]:
    """A GPU that the build cannot use, or could use better."""
    best, names = best_backend(here.host), ", ".join(gpu.name for gpu in here.host.gpus)
    there = GPU_BACKENDS & set(here.build.backends)
    if best and not there:
        what = f"{names}: llama.cpp was built without a GPU back end, so that everything runs on the CPU."
        # Others may be a processor's own, which share its memory and seldom compute faster.
        surely = any(gpu.vendor in (NVIDIA, APPLE) for gpu in here.host.gpus)
        yield best, Problem("gpu", what + _needs(best), advice=not surely)
    elif best == CUDA and CUDA not in there:
        what = f"{names}: llama.cpp uses it through {', '.join(sorted(there))}; CUDA is usually faster."
        yield best, Problem("cuda", what + _needs(best), advice=True)


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
    threads = set_here.get("LLAMA_ARG_THREADS", "")
    if threads and not threads.isdecimal():
        yield Problem("threads", f"LLAMA_ARG_THREADS={threads} is no number of threads.", "unset LLAMA_ARG_THREADS")
    elif threads and int(threads) > n_cores:
        what = f"LLAMA_ARG_THREADS={threads} is more than the {n_cores} usable cores: threads wait for each other."
        yield Problem("threads", what, "unset LLAMA_ARG_THREADS")
    there = GPU_BACKENDS & set(here.build.backends)
    if there and here.host.gpus and not here.build.gpu:
        look = "nvidia-smi" if best_backend(here.host) == CUDA else "vulkaninfo --summary"
        hidden = "CUDA_VISIBLE_DEVICES" in set_here
        what = f"{', '.join(gpu.name for gpu in here.host.gpus)}: llama.cpp was built with {', '.join(sorted(there))} "
        what += f"and finds no GPU: {'CUDA_VISIBLE_DEVICES hides it' if hidden else 'does the driver work?'}."
        yield Problem("driver", what, "unset CUDA_VISIBLE_DEVICES" if hidden else look)


def _machine(here: Installation) -> Iterator[Problem]:
    left = here.host.memory_available
    if left is not None and left < _LEAST_MEMORY:
        what = f"Only {left / 1e9:.1f} GB of memory are left, and every model has to fit. The largest programs are:"
        yield Problem("memory", what, "ps -A -o rss,pid,comm | sort -rn | head")
    for name, folder in here.folders.items():
        variable = f"DUO_{name.upper()}"
        if folder.failure:
            what = f"The {name} folder cannot be used: {folder.failure}"
            yield Problem(f"{name}_folder", what, f'export {variable}="$HOME/duo-{name}"')
    if here.optional["huggingface_hub"] is None:
        what = "huggingface_hub is not installed: -hf and -hfd do not work."
        yield Problem("hub", what, install("huggingface_hub>=0.30"), advice=True)

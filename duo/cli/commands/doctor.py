"""`duo doctor`: this installation, its problems, and the commands that fix them; `duo --list-devices`."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby

from duo.cli.commands.options import DoctorOptions, RunOptions
from duo.cli.installation import (
    CUDA,
    LLAMA,
    METAL,
    NATIVE,
    RPC,
    SLOWING,
    VULKAN,
    Installation,
    best_backend,
    build_with,
    read_installation,
    require_rpc,
    values_of,
)  # fmt: skip
from duo.cli.terminal.console import progress_bar, size_of, warn
from duo.diagnose.host import APPLE, NVIDIA
from duo.llama.build import GPU_BACKENDS
from duo.models.hub import install_command

_wrap = partial(textwrap.wrap, width=80, break_long_words=False, break_on_hyphens=False)
_MODEL_GB = 4
_BUSY = 0.5  # cores in use by other programs, from which a run is slower
_MIN_MEMORY = 1_000_000_000  # the demo pair needs about half of it
# The commands that show what the driver of a back end finds.
_CHECKS = {
    CUDA: "nvidia-smi", VULKAN: "vulkaninfo --summary", METAL: "system_profiler SPDisplaysDataType", "ROCm": "rocminfo",
    "SYCL": "sycl-ls", "OpenCL": "clinfo", "MUSA": "mthreads-gmi", "CANN": "npu-smi info",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of experts that was found on this machine: sizes in bytes."""

    name: str
    bytes: int
    expert_bytes: int
    token_bytes: int  # what one token reads


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, or with `advice`, something that could be better."""

    name: str
    what: str
    command: str
    advice: bool = False


def doctor(options: DoctorOptions) -> int:
    """Print what was found. Returns the exit status: 1 for problems, except for mere advice."""
    with progress_bar("looking at this machine"):
        here = read_installation()
        found = _find_mixtures() if here.build.failure is None else []
    problems = find_problems(here)
    document = {**asdict(here), "mixtures": list(map(asdict, found)), "problems": list(map(asdict, problems))}
    print(json.dumps(document, indent=2) if options.json else "\n".join(render(here, problems, found)))  # noqa: T201
    return int(is_wrong(problems))


def _find_mixtures() -> list[Mixture]:
    from duo.cli.commands.list_models import mixtures, name_of_model  # noqa: PLC0415 - llama.cpp may not be loadable

    return [Mixture(name_of_model(one), one.n_bytes, one.expert_bytes, one.token_bytes) for one in mixtures()]


def show_devices(options: RunOptions) -> int:
    """`duo --list-devices`: print those of this machine, --rpc and --rpcd; warn of missing GPUs. Raises DeviceError."""
    from duo.cli.load import no_gpu_found  # noqa: PLC0415 - llama.cpp may not be loadable
    from duo.llama.devices import add_server, list_devices  # noqa: PLC0415

    for server in (*options.engine.rpc_servers, *(options.engine.draft_rpc_servers or ())):
        require_rpc()
        add_server(server, options.engine.rpc_timeout_s)
    for device in list_devices():
        free, total = device.memory
        print(f"{device.name}: {device.description} ({total / 2**20:.0f} MiB, {free / 2**20:.0f} MiB free)")  # noqa: T201
    if why := no_gpu_found():
        warn(why)
    return 0


def is_wrong(problems: Sequence[Problem]) -> bool:
    """Whether there is more than advice."""
    return any(not problem.advice for problem in problems)


def render(here: Installation, problems: Sequence[Problem], found: Sequence[Mixture] = ()) -> list[str]:
    """The result as lines of at most 80 characters, except for commands and paths."""
    lines = []
    for name, text in chain(_rows(here), _mixtures(here, found)):
        lines += _wrap(text, initial_indent=f"{name:<12}", subsequent_indent=" " * 12)
    for advice, heading in ((False, "Problems, and the commands that fix them:"), (True, "Advice:")):
        such = [problem for problem in problems if problem.advice is advice]
        lines += ["", heading] if such else []
        for command, fixed in groupby(such, key=lambda problem: problem.command):
            for problem in fixed:
                lines += _wrap(problem.what, initial_indent="- ", subsequent_indent="  ")
            lines.append(f"      {command}")
    return lines if is_wrong(problems) else [*lines, "", "No problems found."]


def _rows(here: Installation) -> Iterator[tuple[str, str]]:
    host, build, cores, threads = here.host, here.build, here.cores, here.threads
    yield "versions", _versions(here.versions)
    yield "system", f"{host.system} {host.release}, {host.machine}"
    yield "CPU", host.cpu
    quota, limit = here.limits["cpu"], here.limits["memory"]
    of_cpus = f"a quota of {quota.value:g} ({quota.folder})" if quota else "no quota"
    of_memory = f", a limit of {_gigabytes(limit.value)} ({limit.folder})" if limit else ""
    yield "cores", f"{cores.usable} usable; {cores.allowed} of {cores.logical} logical processors allowed, {of_cpus}"
    yield "threads", f"{threads['alone']} for the target alone; {threads['target']} + {threads['draft']} concurrently"
    yield "load", f"{here.load:.1f} in the last minute"
    yield "memory", f"{_gigabytes(host.memory_total)}, {_gigabytes(host.memory_available)} available{of_memory}"
    yield "bandwidth", _bandwidth(here)
    yield "GPUs", ", ".join(gpu.name for gpu in host.gpus) or "none found"
    if build.failure is None:
        failed = [f"{name} (not started)" for name in build.gpu_backends if name not in build.backends]
        yield "backends", ", ".join([*build.backends, *failed])
        for device in build.devices:
            memory = f"{_gigabytes(device.memory_total)}, {_gigabytes(device.memory_free)} free"
            yield "device", f"{device.name}: {device.description}, {memory}"
        yield "built with", ", ".join(build.features)
        why_not = "no: this build finds no GPU" if build.gpu_backends else "no: this build can use no GPU"
        yield "GPU layers", "yes" if build.gpu else why_not
        yield "RPC", "yes" if build.rpc else "no"
        yield (
            "heads",
            "yes: EAGLE-3, MTP, DFlash, DSpark, DFlash2" if build.heads else "no: llama.cpp is too old, or too new",
        )
    yield "optional", _versions(here.optional)
    if here.environment:
        yield "variables", values_of(here.environment, here.environment, ", ")
    for name, folder in here.folders.items():
        yield name, f"{folder.path or ''} ({folder.failure or 'writable'})".strip()


def _versions(found: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())


def _bandwidth(here: Installation) -> str:
    found = here.bandwidth
    if found is None:
        return "not measured: too little free memory"
    one, together = found.one_thread / 1e9, found.all_threads / 1e9
    rates = f"{one:.1f} GB/s with one thread, {together:.1f} GB/s with {found.n_threads}"
    return f"{rates}: at most {together / _MODEL_GB:.1f} tokens/s for a dense model of {_MODEL_GB} GB on this CPU"


def _mixtures(here: Installation, found: Sequence[Mixture]) -> Iterator[tuple[str, str]]:
    for one in found:
        experts, others = size_of(one.expert_bytes), size_of(one.bytes - one.expert_bytes)
        rate = here.bandwidth and f", at most {here.bandwidth.all_threads / one.token_bytes:.1f} tokens/s on this CPU"
        said = f"{experts} of experts, {others} of the rest; a token reads {size_of(one.token_bytes)}{rate or ''}"
        yield "mixture", f"{one.name}: {said}"


def _gigabytes(n_bytes: float | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / 1e9:.1f} GB"


# The problems


def find_problems(here: Installation) -> list[Problem]:
    """All problems, advice last."""
    rebuilt = list(_build(here))
    # One build with all features, so that no command undoes another.
    features = filter(None, (problem.command for problem in rebuilt))
    command = build_with(*features, backends=[*here.build.backends, *here.build.gpu_backends])
    found = [replace(problem, command=command) for problem in rebuilt]
    return sorted([*found, *_devices(here), *_others(here)], key=lambda problem: problem.advice)


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


def _devices(here: Installation) -> Iterator[Problem]:
    """Why llama.cpp finds no GPU, or cannot be loaded, although it is built for it."""
    build, backends, variables = here.build, here.build.gpu_backends, here.environment
    no_gpu = f"llama.cpp was built with {', '.join(backends)} but finds no GPU"
    if here.hidden:
        found = ", ".join(f"{device.name}, {device.description}" for device in here.hidden.devices)
        named, unset = values_of(variables, here.hidden.variables), f"unset {' '.join(here.hidden.variables)}"
        if build.failure:
            what = f"llama.cpp cannot be loaded: {build.failure}; without {named}, it can be loaded."
            yield Problem("load", what, unset)
        else:
            yield Problem("hidden", f"{no_gpu}: {named} hides {found}.", unset)
    elif backends and not build.gpu:  # for no reason that is known here
        names = dict.fromkeys(name for backend in backends for name in GPU_BACKENDS[backend])
        if tried := [name for name in names if name in variables]:
            no_gpu += f", also without {values_of(variables, tried)}"
        no_gpu += "".join(f'. llama.cpp says: "{line}"' for line in build.messages[:1])
        if VULKAN in backends:
            no_gpu += ". A Vulkan device of the type CPU, such as llvmpipe, is used only if "
            no_gpu += "GGML_VK_VISIBLE_DEVICES names it"
        yield Problem("driver", f"{no_gpu}. Check the driver:", "; ".join(_CHECKS[name] for name in backends))


def _others(here: Installation) -> Iterator[Problem]:
    """What has nothing to do with llama.cpp's build."""
    variables, n_cores, features = here.environment, here.cores.usable, here.build.features
    for name in SLOWING:
        if variables.get(name) and (not features or "OPENMP" in features):
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
        yield Problem("hub", what, install_command(), advice=True)

"""`duo doctor`: this installation, its problems, and the commands that fix them; `duo --list-devices`."""

import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby

from duo.cli.commands.options import DoctorOptions, RunOptions
from duo.cli.installation import Installation, read_installation
from duo.cli.problems import Problem, find_problems, require_rpc
from duo.cli.terminal.console import warn

_wrap = partial(textwrap.wrap, width=80, break_long_words=False, break_on_hyphens=False)
_MODEL_GB = 4


def doctor(options: DoctorOptions) -> int:
    """Print what was found. Returns the exit status: 1 for problems, except for mere advice."""
    here = read_installation()
    problems = find_problems(here)
    document = {**asdict(here), "problems": [asdict(problem) for problem in problems]}
    print(json.dumps(document, indent=2) if options.json else "\n".join(render(here, problems)))  # noqa: T201
    return int(is_wrong(problems))


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


def render(here: Installation, problems: Sequence[Problem]) -> list[str]:
    """The result as lines of at most 80 characters, except for commands and paths."""
    lines = []
    for name, text in _rows(here):
        lines += _wrap(text, initial_indent=f"{name:<12}", subsequent_indent=" " * 12)
    for advice, heading in ((False, "Problems, and the commands that fix them:"), (True, "Advice:")):
        found = [problem for problem in problems if problem.advice is advice]
        lines += ["", heading] if found else []
        for command, fixed in groupby(found, key=lambda problem: problem.command):
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
        yield "heads", "yes: EAGLE-3 and MTP" if build.heads else "no: llama.cpp is too old, or too new"
    yield "optional", _versions(here.optional)
    if here.environment:
        yield "variables", ", ".join(f"{name}={shlex.quote(value)}" for name, value in here.environment.items())
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
    return f"{rates}: at most {together / _MODEL_GB:.1f} tokens/s for a model of {_MODEL_GB} GB on this CPU"


def _gigabytes(n_bytes: float | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / 1e9:.1f} GB"

"""`duo doctor`: this installation, its problems, and the commands that fix them."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby

from duo.cli.installation import Installation, read_installation
from duo.cli.options.by_command import DoctorOptions
from duo.cli.problems import Problem, find_problems

_wrap = partial(textwrap.wrap, width=80, break_long_words=False, break_on_hyphens=False)
_MODEL_GB = 4


def doctor(options: DoctorOptions) -> int:
    """Print what was found. Returns the exit status: 1 for problems, except for mere advice."""
    here = read_installation()
    problems = find_problems(here)
    print(to_json(here, problems) if options.json else "\n".join(render(here, problems)))  # noqa: T201 - the output
    return int(is_wrong(problems))


def is_wrong(problems: Sequence[Problem]) -> bool:
    """Whether there is more than advice."""
    return any(not problem.advice for problem in problems)


def to_json(here: Installation, problems: Sequence[Problem]) -> str:
    """The result as JSON; memory in bytes, bandwidth in bytes per second."""
    return json.dumps({**asdict(here), "problems": [asdict(problem) for problem in problems]}, indent=2)


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
    yield "versions", ", ".join(f"{name} {version or 'not installed'}" for name, version in here.versions.items())
    yield "system", f"{host.system} {host.release}, {host.machine}"
    yield "CPU", host.cpu
    quota = "no quota" if cores.quota is None else f"a quota of {cores.quota:g}"
    yield "cores", f"{cores.usable} usable; {cores.allowed} of {cores.logical} logical processors allowed, {quota}"
    yield "threads", f"{threads['alone']} for the target alone; {threads['target']} + {threads['draft']} concurrently"
    yield "load", f"{here.load:.1f} in the last minute"
    yield "memory", f"{_gigabytes(host.memory_total)}, {_gigabytes(host.memory_available)} available"
    yield "bandwidth", _bandwidth(here)
    yield "GPUs", ", ".join(gpu.name for gpu in host.gpus) or "none found"
    if build.failure is None:
        failed = [f"{name} (not started)" for name in build.gpu_backends if name not in build.backends]
        yield "backends", ", ".join([*build.backends, *failed])
        for device in build.devices:
            memory = f"{_gigabytes(device.memory_total)}, {_gigabytes(device.memory_free)} free"
            yield "device", f"{device.name}: {device.description}, {memory}"
        yield "built with", ", ".join(build.features)
        yield "GPU layers", "yes" if build.gpu else _no_gpu(here)
        yield "RPC", "yes" if build.rpc else "no"
    yield "optional", ", ".join(f"{name} {version or 'not installed'}" for name, version in here.optional.items())
    if here.environment:
        yield "variables", ", ".join(f"{name}={shlex.quote(value)}" for name, value in here.environment.items())
    for name, folder in here.folders.items():
        yield name, f"{folder.path or ''} ({folder.failure or 'writable'})".strip()


def _no_gpu(here: Installation) -> str:
    return "no: this build finds no GPU" if here.build.gpu_backends else "no: this build can use no GPU"


def _bandwidth(here: Installation) -> str:
    found = here.bandwidth
    if found is None:
        return "not measured: too little free memory"
    one, together = found.one_thread / 1e9, found.all_threads / 1e9
    more = f", {together:.1f} GB/s with {found.n_threads}" if found.n_threads > 1 else ""
    rates = f"{one:.1f} GB/s with one thread{more}"
    return f"{rates}: at most {together / _MODEL_GB:.1f} tokens/s for a model of {_MODEL_GB} GB on this CPU"


def _gigabytes(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / 1e9:.1f} GB"

"""`duo doctor`: what this installation can do, what is wrong with it, and the command that mends it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from duo.cli.options.declare import HelpOpt

if TYPE_CHECKING:
    from duo.cli.installation import Installation
    from duo.cli.problems import Problem

_WIDTH = 80
_MODEL_GB = 4


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of `duo doctor`."""

    json: Annotated[bool, typer.Option("--json", help="Write what was found as JSON to stdout.")] = False
    help: HelpOpt = False


def doctor(options: DoctorOptions) -> int:
    """Look, and print what was found. Returns the exit status: 1 if something is wrong; advice is not."""
    from duo.cli.installation import read_installation  # noqa: PLC0415 - not for --help
    from duo.cli.problems import find_problems  # noqa: PLC0415

    here = read_installation()
    problems = find_problems(here)
    print(to_json(here, problems) if options.json else "\n".join(render(here, problems)))  # noqa: T201 - asked for
    return int(is_wrong(problems))


def is_wrong(problems: Sequence[Problem]) -> bool:
    """Whether one of them is more than advice."""
    return any(not problem.advice for problem in problems)


def to_json(here: Installation, problems: Sequence[Problem]) -> str:
    """The same as a JSON document; memory in bytes, bandwidth in bytes per second."""
    return json.dumps({**asdict(here), "problems": [asdict(problem) for problem in problems]}, indent=2)


def render(here: Installation, problems: Sequence[Problem]) -> list[str]:
    """The findings as lines of at most 80 characters; commands and paths may be longer, so that they can be copied."""
    lines = []
    for name, text in _rows(here):
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    for advice, words in ((False, "Wrong, and the command that mends it:"), (True, "Advice:")):
        told = [problem for problem in problems if problem.advice is advice]
        lines += ["", words] if told else []
        # What one command mends is said together.
        for command, mended in groupby(told, key=lambda problem: problem.command):
            for problem in mended:
                lines += textwrap.wrap(problem.what, _WIDTH, initial_indent="- ", subsequent_indent="  ")
            lines.append(f"      {command}")
    return lines if is_wrong(problems) else [*lines, "", "Nothing is wrong."]


def _rows(here: Installation) -> Iterator[tuple[str, str]]:
    host, build, cores, threads = here.host, here.build, here.cores, here.threads
    yield "versions", ", ".join(f"{name} {version or 'is missing'}" for name, version in here.versions.items())
    yield "system", f"{host.system} {host.release}, {host.machine}"
    yield "CPU", host.cpu
    quota = "no quota" if cores.quota is None else f"a quota of {cores.quota:g}"
    yield "cores", f"{cores.usable} usable; {cores.allowed} of {cores.logical} logical processors allowed, {quota}"
    yield "threads", f"{threads['alone']} for the target alone; side by side {threads['target']} + {threads['draft']}"
    yield "memory", f"{_gigabytes(host.memory_total)}, {_gigabytes(host.memory_available)} available"
    yield "bandwidth", _bandwidth(here)
    yield "GPUs", ", ".join(gpu.name for gpu in host.gpus) or "none seen"
    if build.failure is None:
        yield "back ends", ", ".join(build.backends)
        for device in build.devices:
            memory = f"{_gigabytes(device.memory_total)}, {_gigabytes(device.memory_free)} free"
            yield "device", f"{device.name}: {device.description}, {memory}"
        yield "built with", ", ".join(build.features)
        yield "GPU layers", "yes" if build.gpu else "no: there is no GPU that this build can use"
        yield "RPC", "yes" if build.rpc else "no"
    yield "optional", ", ".join(f"{name} {version or 'is not here'}" for name, version in here.optional.items())
    for name, folder in here.folders.items():
        yield name, f"{folder.path or ''} ({folder.failure or 'can be written'})".strip()


def _bandwidth(here: Installation) -> str:
    found = here.bandwidth
    if found is None:
        return "not measured: too little memory is left"
    one, together = found.one_thread / 1e9, found.all_threads / 1e9
    more = f", {together:.1f} GB/s with {found.n_threads}" if found.n_threads > 1 else ""
    rates = f"{one:.1f} GB/s with one thread{more}"
    return f"{rates}: a model of {_MODEL_GB} GB writes at most {together / _MODEL_GB:.1f} tokens/s on this CPU"


def _gigabytes(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / 1e9:.1f} GB"

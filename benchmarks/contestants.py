"""The programs that are measured: how each is called, and what each says about its speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from duo.bench.contestant import Job, Run
from duo.bench.peers import (
    ParseError,
    cli_command,
    completion_command,
    parse_cli,
    parse_completion,
    parse_speculative,
    speculative_command,
)
from duo.bench.process import Cost

N_CTX = 2048
SPECULATIVE_N_MAX = (2, 3, 5, 8)
SPECULATIVE_P_MIN = (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class Task(Job):
    """A job, and the file that duo writes its statistics to."""

    json_file: Path


def example(n_tokens: int) -> Task:
    """A task to show commands with: capitals stand for the files."""
    return Task(Path("TARGET"), Path("DRAFT"), "", Path("PROMPT"), n_tokens, N_CTX, Path("STATISTICS"))


@dataclass(frozen=True, slots=True)
class DuoRun(Run):
    """A run of the command `duo`."""

    predicted_tokens_per_s: float | None = None  # by its own simulation


@dataclass(frozen=True, slots=True)
class Contestant:
    """One program with one set of threads and options."""

    name: str
    program: str
    threads: int | None  # None: it chooses
    command: Callable[[Task], list[str]]
    parse: Callable[[Task, Cost], Run]
    draft_threads: int | None = None  # None: no draft, or it chooses
    options: dict[str, Any] = field(default_factory=dict)


def all_contestants(duo: list[str], peers: Path) -> list[Contestant]:
    """Every contestant; `duo` is the command that starts it, `peers` the folder with llama.cpp's programs."""
    found = [duo_plain(duo, 1), duo_pair(duo, 1, 1)]
    found += [completion(peers, 1), completion(peers, 2), cli(peers, 1), cli(peers, 2)]
    return found + taking_turns(peers, ("1+1", "2"), p_mins=(0.0,))


def taking_turns(peers: Path, threads: Sequence[str], p_mins: Sequence[float] = SPECULATIVE_P_MIN) -> list[Contestant]:
    """llama-speculative-simple in every combination of its settings."""
    return [speculative(peers, *setting) for setting in product(threads, SPECULATIVE_N_MAX, p_mins)]


def duo_alone(duo: list[str]) -> Contestant:
    """duo with no flags but the models: it chooses everything else."""

    def command(job: Task) -> list[str]:
        return [*duo, *_common(job), "-md", str(job.draft), "--json", str(job.json_file)]

    return Contestant("duo", "duo", None, command, parse_duo)


def duo_plain(duo: list[str], threads: int) -> Contestant:
    """duo without a draft."""

    def command(job: Task) -> list[str]:
        return [*duo, *_common(job), "-t", str(threads), "--json", str(job.json_file)]

    return Contestant(f"duo plain {threads}", "duo", threads, command, parse_duo)


def duo_pair(duo: list[str], threads: int, draft_threads: int) -> Contestant:
    """duo with both models at the same time."""

    def command(job: Task) -> list[str]:
        threads_options = ["-t", str(threads), "-td", str(draft_threads)]
        return [*duo, *_common(job), "-md", str(job.draft), *threads_options, "--json", str(job.json_file)]

    name = f"duo {threads}+{draft_threads}"
    return Contestant(name, "duo", threads, command, parse_duo, draft_threads)


def completion(peers: Path, threads: int) -> Contestant:
    """llama.cpp's plain baseline."""

    def command(job: Task) -> list[str]:
        return completion_command(peers / "llama-completion", job, threads)

    return Contestant(f"completion {threads}", "llama-completion", threads, command, parse_completion)


def cli(peers: Path, threads: int) -> Contestant:
    """llama.cpp's chat program."""

    def command(job: Task) -> list[str]:
        return cli_command(peers / "llama-cli", job, threads)

    return Contestant(f"cli {threads}", "llama-cli", threads, command, parse_cli)


def speculative(peers: Path, threads: str, n_max: int, p_min: float) -> Contestant:
    """llama.cpp's taking turns; `threads` is "1+1" for one each or "2" for all to whoever's turn it is."""
    target, _, draft = threads.partition("+")
    draft = draft or target

    def command(job: Task) -> list[str]:
        programs = peers / "llama-speculative-simple"
        return speculative_command(programs, job, int(target), int(draft), n_max, p_min)

    return Contestant(
        f"speculative {threads} n{n_max}" + (f" p{p_min:g}" if p_min else ""),
        "llama-speculative-simple",
        int(target),
        command,
        parse_speculative,
        int(draft),
        {"n_max": n_max, "p_min": p_min},
    )


def _common(job: Job) -> list[str]:
    files = ["-m", str(job.target), "-f", str(job.prompt_file)]
    return [*files, "-n", str(job.n_tokens), "-c", str(job.n_ctx), "--ignore-eos"]


def parse_duo(job: Task, cost: Cost) -> DuoRun:
    """Read duo's --json; stdout is the text and nothing else."""
    if not job.json_file.exists():
        raise ParseError("duo wrote no --json file")
    statistics = json.loads(job.json_file.read_text(encoding="utf-8"))
    generation, policy = statistics["generation"], statistics.get("policy") or {}
    return DuoRun(
        int(generation["tokens"]),
        float(generation["tokens_per_s"]),
        cost.stdout.strip("\n"),
        predicted_tokens_per_s=policy.get("predicted_tokens_per_s"),
    )

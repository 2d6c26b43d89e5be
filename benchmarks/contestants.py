"""Contestants that run a command per text. This imports no third-party packages."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from shlex import split

from duo.bench.contestant import Contestant, Job, Run
from duo.bench.peers import SPECULATIVE, Drafting, Program, run_program, text_options
from duo.bench.process import Cost
from duo.engine.cores import usable_cores

N_CTX = 2048
N_MAX, P_MIN = (2, 3, 4, 8), (0.0, 0.5)  # of llama-speculative-simple
ALONE = "--lookup off"  # without -md, the target alone
NGRAM_MAPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")  # --spec-type of programs without a draft model
NGRAM_MOD = "ngram-mod"
NGRAM_SIZES = ((3, 8), (3, 16), (4, 8), (4, 16))  # tokens matched and tokens drafted; the defaults are 12 and 48


@dataclass(frozen=True, slots=True)
class Setup:
    """The models, prompts and settings of a scenario."""

    pair: str
    target: Path
    draft: Path
    prompt_files: Sequence[Path]
    n_rounds: int
    n_tokens: int
    duo: Sequence[str]  # the command
    peers: Path  # the folder of llama.cpp's programs
    only: Sequence[str]  # prefixes of the names of contestants; empty: all
    folder: Path  # for temporary files
    stack: ExitStack  # stops processes at the end

    @property
    def job(self) -> Job:
        """The job of all contestants, without the prompt."""
        return Job(self.target, self.draft, "", Path("PROMPT"), self.n_tokens, N_CTX)

    def config(self, name: str) -> dict[str, str]:
        """The environment variable for a separate configuration folder, and so a separate profile."""
        return {"DUO_CONFIG": str(self.folder / name)}


@dataclass(frozen=True, slots=True)
class DuoRun(Run):
    """A run of the command, with what its policy has learned; None without a draft or while it knows too little."""

    first_accept_rate: float | None = None  # of the first candidates of batches
    forecast_tokens_per_s: float | None = None  # of the best schedule, the target alone included
    forecast_gain: float | None = None  # that, over the target alone
    stated_gain: float | None = None  # by what it prints at its end


@dataclass(frozen=True, slots=True)
class Duo:
    """The command `duo`, with a separate profile that starts empty and is kept from text to text."""

    name: str
    options: Sequence[str]  # {draft} is replaced by the draft
    program: Sequence[str]
    variables: Mapping[str, str]  # of the environment

    def command(self, job: Job) -> list[str]:
        """The command line."""
        options = [option.format(draft=job.draft) for option in self.options]
        return [*self.program, *text_options(job), *options, "--json", str(_report(job))]

    def write(self, job: Job, stop: threading.Event) -> Run:
        return run_program(self.name, self.command(job), job, _parse_duo, stop, self.variables)


def _report(job: Job) -> Path:
    return job.prompt_file.with_name("report.json")


def _parse_duo(job: Job, cost: Cost) -> Run:
    """Parse the --json report; stdout has only the text."""
    statistics = json.loads(_report(job).read_text(encoding="utf-8"))
    _report(job).unlink()
    startup_s = cost.wall_s - statistics["generation"]["seconds"]
    rates = (statistics.get("policy") or {}).get("forecast_tokens_per_s") or {}
    first, *_ = (statistics["draft"] or {}).get("accept_rate_by_position") or [None]
    best = max(rates.values(), default=None)
    gain = best / rates["off"] if best and rates.get("off") else None
    found = DuoRun.of(cost.stdout, statistics)
    return replace(
        found, startup_s=startup_s, first_accept_rate=first, forecast_tokens_per_s=best, forecast_gain=gain,
        stated_gain=_stated_gain(cost.stderr),
    )  # fmt: skip


def _stated_gain(said: str) -> float | None:
    """The gain in what `duo -v` prints; None if it states none."""
    if found := re.search(r"made this ([\d.]+) times as fast", said):
        return float(found[1])
    if found := re.search(r"(\d+) % slower than the target alone", said):
        return 1 - int(found[1]) / 100
    return 1.0 if "as fast as the target alone" in said else None


def duo(setup: Setup, name: str, options: str, program: Sequence[str] = ()) -> Contestant:
    """duo with these options, which may name the draft. `program` replaces the command.

    Without `ALONE`, it also looks up candidates in the text itself.
    """
    return Contestant(name, Duo(name, split(options), program or setup.duo, setup.config(name)))


def patched(code: str) -> list[str]:
    """The command `duo`, after running `code` in its process."""
    return [sys.executable, "-c", f"{code}\nimport sys\nfrom duo.cli.main import main\nsys.argv[0] = 'duo'\nmain()"]


def plain_program(setup: Setup, name: str, threads: int) -> Contestant:
    """llama-completion or llama-cli."""
    return Contestant(f"{name} -t {threads}", Program(name, setup.peers / name, threads))


def speculative(
    setup: Setup, threads: Sequence[str] = ("1+1", "2"), p_mins: Sequence[float] = P_MIN
) -> list[Contestant]:
    """llama-speculative-simple with all combinations of settings; threads "1+1": one per model, "2": two for both."""
    found = []
    for setting, n_max, p_min in product(threads, N_MAX, p_mins):
        target, _, draft = setting.partition("+")
        program = Program(
            SPECULATIVE, setup.peers / SPECULATIVE, int(target), Drafting(int(draft or target), n_max, p_min)
        )
        name = f"{SPECULATIVE} -t {setting}" + (f" p={p_min:g}" if p_min else "")
        found.append(Contestant(name, program, n_max=str(n_max)))
    return found


def ngrams(setup: Setup) -> list[Contestant]:
    """llama-speculative-simple with candidates from the text itself, by every method, with default and small sizes."""
    found = []
    for kind in (*NGRAM_MAPS, NGRAM_MOD):
        for size in (None, *NGRAM_SIZES):
            more = ["--spec-type", kind, *(_ngram_options(kind, *size) if size is not None else ())]
            name = f"{SPECULATIVE} {kind}" + (f" n={size[0]}, m={size[1]}" if size is not None else "")
            program = Program(SPECULATIVE, setup.peers / SPECULATIVE, usable_cores(), more=more)
            found.append(Contestant(name, program))
    return found


def _ngram_options(kind: str, n_match: int, n_draft: int) -> list[str]:
    if kind == NGRAM_MOD:  # drafts fewer than its minimum are dropped
        sizes = {"n-match": n_match, "n-min": 1, "n-max": n_draft}
    else:
        sizes = {"size-n": n_match, "size-m": n_draft}
    return [word for name, size in sizes.items() for word in (f"--spec-{kind}-{name}", str(size))]

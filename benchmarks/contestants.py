"""Contestants that run a command per text."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from shlex import split

import msgspec

from benchmarks.process import Cost, run_process
from duo.bench.contestants import Program, checked, text_options
from duo.bench.rounds import Contestant, Job, ParseError, Run, with_prompt
from duo.engine.statistics import Statistics
from duo.llama.attention import flash_is_fast
from duo.llama.gguf_header import GgufHeader

N_CTX = 4096
ALONE = "--lookup off"  # without -md, the target alone
# Of programs without a draft model; tokens matched and drafted, whose defaults are 12 and 48.
NGRAMS = {
    "ngram-simple n=3, m=8": "size-n=3 size-m=8",
    "ngram-map-k n=3, m=8": "size-n=3 size-m=8",
    "ngram-mod n=3, m=8": "n-match=3 n-min=1 n-max=8",  # drafts fewer than its minimum are dropped
    "ngram-mod n=8, m=8": "n-match=8 n-min=2 n-max=8",
}


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
    only: Sequence[str]  # names of contestants, or how they start; empty: all
    folder: Path  # for temporary files
    stack: ExitStack  # stops processes at the end
    machine: str = ""  # FILE[:PAIR], of two-devices
    end: float = math.inf  # by time.monotonic(), of the rounds
    may_end: bool = False  # whether texts may end by themselves
    # Of spec-bench
    questions: Path | None = None
    per_category: int | None = None  # questions of each category; None: all
    n_turns: int | None = None  # of each question; None: all
    temperatures: Sequence[float] = (0.0,)
    journal: Path | None = None  # of finished texts
    commit: str = ""  # of the working tree
    first_texts: bool = False  # an empty profile for each text, not only for each series
    bursts: bool = False  # of another program, on one core

    @property
    def under(self) -> str:
        """The circumstances that a text of spec-bench has only in common with those of the same."""
        circumstances = {"first texts": self.first_texts, "bursts": self.bursts}
        return ", ".join(name for name, holds in circumstances.items() if holds)

    @property
    def job(self) -> Job:
        """That of all contestants, without the prompt."""
        return Job(self.target, self.draft, "", Path("PROMPT"), self.n_tokens, N_CTX, may_end=self.may_end)

    def config(self, name: str) -> dict[str, str]:
        """The environment variable for a separate configuration folder, and so a separate profile."""
        return {"DUO_CONFIG": str(self.folder / name)}

    def chosen(self, found: Sequence[Contestant]) -> list[Contestant]:
        """Those that `only` names, or whose names begin so."""
        names = {each.name for each in found}
        exact, starts = names.intersection(self.only), tuple(name for name in self.only if name not in names)
        return [each for each in found if not self.only or each.name in exact or each.name.startswith(starts)]

    def program(self, name: str) -> Path:
        """The path of one of llama.cpp's programs. Raises ParseError if there is none."""
        if not (self.peers / name).exists():
            raise ParseError(f"{self.peers} has no {name}: build it with benchmarks/peers.sh")
        return self.peers / name

    def write(self, contestant: Contestant, file: Path) -> Run:
        """A text outside of the rounds. Raises DuoError."""
        text = file.read_text(encoding="utf-8").removesuffix("\n")
        return contestant.write(with_prompt(self.job, text, self.folder / file.name), threading.Event())


@dataclass(frozen=True, slots=True)
class Duo:
    """The command `duo`, with a separate profile that starts empty and is kept from text to text."""

    name: str
    options: Sequence[str]  # {draft} is replaced by the draft
    program: Sequence[str]
    variables: Mapping[str, str]  # of the environment

    def command(self, job: Job) -> list[str]:
        return [*self.program, *text_options(job), *(option.format(draft=job.draft) for option in self.options),
                "--json", str(_report(job))]  # fmt: skip

    def __call__(self, job: Job, stop: threading.Event) -> Run:
        """See Contestant."""
        start = partial(run_process, self.command(job), self.variables, stop)
        return checked(self.name, job.n_least, start, partial(_read, _report(job)))


def _report(job: Job) -> Path:
    return job.prompt_file.with_name("report.json")


def _read(report: Path, cost: Cost) -> Run:
    """Parse the --json report, with what the policy has learned; stdout has only the text."""
    document = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    found = msgspec.convert(document, Statistics)
    rates = (document.get("policy") or {}).get("forecast_tokens_per_s") or {}
    by_position = found.draft.accept_rate_by_position if found.draft else []
    best, rate = max(rates.values(), default=None), found.generation.tokens_per_s
    return Run.of(
        cost.stdout, found, peak_mb=cost.peak_bytes / 1e6,
        startup_s=cost.wall_s - found.generation.seconds,  # wall time without the generation
        first_accept_rate=next(iter(by_position), None),  # of the first candidates of batches
        over_forecast=rate / best if best and rate else None,
    )  # fmt: skip


def duo(setup: Setup, name: str, options: str, program: Sequence[str] = ()) -> Contestant:
    """duo with these options, which may name the draft. `program` replaces the command.

    Without `ALONE`, it also looks up candidates in the text itself.
    """
    return Contestant(name, Duo(name, split(options), program or setup.duo, setup.config(name)))


def commands(setup: Setup, options: Mapping[str, str]) -> list[Contestant]:
    return [duo(setup, name, each) for name, each in options.items()]


def patched(code: str) -> list[str]:
    """The command `duo`, after running `code` in its process."""
    return [sys.executable, "-c", f"{code}\nimport sys\nfrom duo.cli.main import main\nsys.argv[0] = 'duo'\nmain()"]


def plain_program(setup: Setup, name: str, threads: int, *more: str) -> Contestant:
    return Contestant(" ".join((f"{name} -t {threads}", *more)), Program(name, setup.program(name), threads, more))


def flash_attention(target: Path) -> str:
    """As duo's on this CPU."""
    return "on" if flash_is_fast(GgufHeader(target).head_sizes[0]) else "off"


def settings() -> dict[str, list[str]]:
    """llama.cpp's settings of speculation by name: with a draft, with the text itself, and with both."""
    draft = "--spec-type draft-simple -md {draft}"
    found = {"draft": draft}
    found |= {
        f"draft n={n} p={p:g}": f"{draft} --spec-draft-n-max {n} --spec-draft-p-min {p:g}"
        for n, p in product((2, 4, 8), (0.0, 0.5))
    }
    found |= {kind: f"--spec-type {kind}" for kind in ("ngram-simple", "ngram-map-k", "ngram-mod")}
    for name, sizes in NGRAMS.items():
        kind = name.split()[0]
        found[name] = " ".join([f"--spec-type {kind}", *(f"--spec-{kind}-{size}" for size in sizes.split())])
    both = found["ngram-mod n=3, m=8"].replace("ngram-mod", "draft-simple,ngram-mod", 1)
    return {name: each.replace("=", " ").split() for name, each in (found | {"both": f"{both} -md {{draft}}"}).items()}

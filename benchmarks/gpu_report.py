"""The report of benchmarks.gpu: the machine, what first runs learn, exact texts, and the placements in rounds."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY
from benchmarks.__main__ import git_commit
from benchmarks.contestants import Duo, Setup
from benchmarks.gpu import COLD, NO_WARM_UP, WARM
from benchmarks.measure import Comparison, Outcome, Verdict, fastest, note
from duo.bench import formats
from duo.bench.contestant import Contestant, Job
from duo.bench.process import last_line, run_process
from duo.bench.prompts import Prompt, rounds
from duo.bench.results import Results
from duo.bench.rounds import Sample
from duo.bench.rounds import measure as take_samples
from duo.bench.statistics import Range
from duo.bench.texts import first_difference
from duo.errors import DuoError

_N_RUNS = 3  # in which a new profile learns
_N_TOKENS = 64  # of each run outside of the rounds
_PROBE_S = 20.0  # for a program that tells the driver's version
_DRIVERS = {
    "CUDA": ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    "Vulkan": ("vulkaninfo", "--summary"),
}
_VERSION = re.compile(r"^\s*(?:driverInfo\s*=\s*(.+)|(\d+[\d.]+))$", re.MULTILINE)
_INEXACT = ("is not bit-equal", "are not exact")  # duo's warnings about --exact


class InTime(list[Prompt]):
    """Prompts of rounds: an iteration ends where another round as long as the longest would end after `end`."""

    def __init__(self, prompts: Sequence[Prompt], end: float, now: Callable[[], float] = time.monotonic) -> None:
        """`end`: seconds by the clock `now`. The first round is never left out."""
        super().__init__(prompts)
        self._end, self._now = end, now

    def __iter__(self) -> Iterator[Prompt]:
        """See InTime."""
        last, longest = self._now(), 0.0
        for i in range(len(self)):
            now = self._now()
            longest, last = max(longest, now - last), now
            if i and now + longest > self._end:
                return
            yield self[i]


@dataclass(frozen=True, slots=True)
class OneRun:
    """A run of the command outside of the rounds."""

    text: str
    said: str  # standard error
    statistics: dict[str, Any]
    startup_s: float  # wall time without the generation: loading, warm-up and prompt

    def target_ms(self, condition: str) -> float | None:
        """T(1), "alone" or "beside" a draft, as learned by the end of the run; None if not measured."""
        found: float | None = ((self.statistics["policy"] or {}).get("target_ms") or {}).get(condition, {}).get("1")
        return found

    def figures(self) -> dict[str, Any]:
        """The report without local paths, and the start-up."""
        kept = ("prompt", "generation", "draft", "lookup", "memory", "policy", "threads")
        return {"startup_s": self.startup_s} | {name: self.statistics[name] for name in kept}


Runs = Mapping[str, OneRun | None]  # by name; None: it failed


@dataclass(frozen=True, slots=True)
class Placements(Comparison):
    """As many rounds as fit the time, after runs of which there are no rounds."""

    installation: dict[str, Any] = field(default_factory=dict)  # of duo doctor
    unmeasured: Callable[[Setup], list[Contestant]] = lambda _: []  # see benchmarks.gpu.unmeasured
    minutes: float = 15.0
    began: float = 0.0  # by time.monotonic()
    timed: bool = True  # whether times matter: not in a test run

    failures: list[str] = field(default_factory=list)  # of commands, which are left out from then on

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        more = {c.name: c.writer for c in self.unmeasured(setup) if isinstance(c.writer, Duo)}
        later = next(c.writer for c in self.contestants(setup) if c.name == WARM and isinstance(c.writer, Duo))
        job = example(setup)
        first = {f"run {i + 1} with a new profile": self._one_run(later, job) for i in range(_N_RUNS)}
        cold = {"without warm-up and profile": self._one_run(more.pop(NO_WARM_UP), job)}
        texts = {name: self._one_run(writer, job) for name, writer in more.items()}
        compared = Comparison.run(self, setup)
        n_rounds = len({run["round"] for run in compared.document["runs"]})
        failures = [f"- FAILED: {without_paths(text, setup)}" for text in dict.fromkeys(self.failures)]
        lines = [
            *machine_lines(self.installation), "",
            f"{n_rounds} of {setup.n_rounds} rounds fitted into {self.minutes:g} minutes. Tokens/s: medians with "
            f"quartiles; ratios: geometric means with 95 % t intervals; {COLD} has no profile in any round.",
            "", *compared.lines, "", *first_lines(first | cold), "", *exact_lines(texts), *failures,
        ]  # fmt: skip
        runs = {name: run.figures() for name, run in finished(first | cold).items()}
        times = [warm_up(list(first.values()))] if self.timed else []
        complete = Verdict("commands without a failure", Range(float(not failures), None, None), 1.0)
        return Outcome(
            lines, compared.document | {"first_runs": runs, "failures": failures},
            [*compared.verdicts, *times, *exact(texts), complete],
        )  # fmt: skip

    def measure(self, setup: Setup) -> tuple[Results, bool]:
        """See Comparison. A command that fails is left out of the later rounds, unless it is the baseline."""
        prompts = [
            Prompt(file.stem, file.read_text(encoding="utf-8").removesuffix("\n")) for file in setup.prompt_files
        ]
        found = [c for c in self.contestants(setup) if not setup.only or c.name.startswith(tuple(setup.only))]
        results = Results([replace(c, may_fail=c.name != self.baseline) for c in found])
        timed = InTime(rounds(prompts, setup.n_rounds), self.began + 60 * self.minutes)
        results.baseline = fastest(results, self.baseline) or results.contestants[0]

        def put(sample: Sample) -> None:
            results.add(sample)
            note(formats.progress(sample, results, setup.n_rounds))

        with suppress(KeyboardInterrupt):
            never = threading.Event()
            take_samples(results.contestants, timed, setup.job, put, self._fail, never, warm_up=False)
            return results, True
        note("interrupted")
        return results, False

    def _one_run(self, writer: Duo, job: Job) -> OneRun | None:
        """None if it fails."""
        try:
            return one_run(writer, job)
        except DuoError as error:
            self._fail(str(error))
            return None

    def _fail(self, text: str) -> None:
        note(text)
        self.failures.append(text)


def without_paths(text: str, setup: Setup) -> str:
    """What a program said, without the folders of the models and of this user."""
    for folder in (setup.target.parent, setup.draft.parent, setup.folder, REPOSITORY, Path.home()):
        text = text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    return text


def example(setup: Setup) -> Job:
    """The job of the runs outside of the rounds, with the last prompt."""
    file = setup.prompt_files[-1]
    copy = setup.folder / file.name
    copy.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return replace(setup.job, prompt_file=copy, n_tokens=min(_N_TOKENS, setup.n_tokens))


def one_run(writer: Duo, job: Job) -> OneRun:
    """Run the command. Raises DuoError if it fails."""
    note(writer.name)
    cost = run_process(writer.command(job), writer.variables)
    if cost.status:
        raise DuoError(f"{writer.name}: duo exited with {cost.status}: {last_line(cost.stderr)}")
    report = job.prompt_file.with_name("report.json")
    statistics = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return OneRun(cost.stdout, cost.stderr, statistics, cost.wall_s - statistics["generation"]["seconds"])


def machine_lines(found: dict[str, Any]) -> list[str]:
    """A list of machine, card, driver and versions, from the report of duo doctor."""
    host, build, commit = found["host"], found["build"], git_commit()
    cards = [
        f"{card['name']}: {card['description']}, {card['memory_total'] / 1e9:.1f} GB, "
        f"{card['memory_free'] / 1e9:.1f} GB free"
        for card in build["devices"] if card["kind"] != "CPU"
    ]  # fmt: skip
    versions = ", ".join(f"{name} {version or 'not installed'}" for name, version in found["versions"].items())
    changed = ", changed" if commit["changed"] else ""
    return [
        f"- machine: {host['cpu']}, {found['cores']['usable']} cores, {host['memory_total'] / 1e9:.1f} GB, "
        f"{host['system']} {host['release']} {host['machine']}",
        *(f"- card: {card}" for card in cards or ["none"]),
        f"- driver: {driver(build['backends']) or 'unknown'}",
        f"- build: {', '.join(build['backends'])}; {', '.join(build['features'])}",
        f"- versions: {versions}; commit {(commit['commit'] or 'unknown')[:10]}{changed}",
    ]


def driver(backends: Sequence[str]) -> str:
    """The driver's version, as its own programs tell it; empty if unknown."""
    found: list[str] = []
    for backend in [name for name in _DRIVERS if name in backends]:
        try:
            cost = run_process(_DRIVERS[backend], timeout_s=_PROBE_S)
        except (OSError, TimeoutError):
            continue
        found += [(first or second).strip() for first, second in _VERSION.findall(cost.stdout)]
    return ", ".join(dict.fromkeys(found))


def first_lines(runs: Runs) -> list[str]:
    """A table of what runs with a new profile learn, and the placement that duo chose for them."""
    rows = [["no options", "start-up s", "T(1) ms", "T(1) ms beside", "draft ms", "decode t/s"]]
    for name, run in finished(runs).items():
        draft, generation = run.statistics["draft"] or {}, run.statistics["generation"]
        figures = [run.startup_s, run.target_ms("alone"), run.target_ms("beside"), draft.get("ms_per_token"),
                   generation["tokens_per_s"]]  # fmt: skip
        rows.append([name, *("" if figure is None else f"{figure:.2f}" for figure in figures)])
    said = "".join(run.said for run in finished(runs).values())
    placed = re.search(r"layers on devices \(.*?\): (.*)", said)
    return [
        "Start-up: loading, warm-up and prompt."
        + (f" Layers on devices, chosen by duo: {placed[1]}." if placed else ""),
        "", *formats.markdown_table(rows),
    ]  # fmt: skip


def warm_up(learned: Sequence[OneRun | None]) -> Verdict:
    """T(1) learned in the first run over that in the last, in the condition that both have measured."""
    first, *_, last = learned
    times = (
        (first.target_ms(name), last.target_ms(name)) for name in ("alone", "beside") if first is not None and last
    )
    ratio = next((Range(one / other, None, None) for one, other in times if one and other), None)
    return Verdict(f"T(1) learned in run 1 over run {len(learned)}", ratio, 0.8, 1.25)


def exact_lines(texts: Runs) -> list[str]:
    """Where each text with a draft differs from the target's own; `texts` has them in pairs, without and with."""
    found = []
    for name, one, other in pairs(texts):
        place = first_difference(other.text, one.text)
        how = "identical" if place is None else f"differs from character {place}"
        found.append(f"- text with --exact, target {name}: {how}")
    return found


def exact(texts: Runs) -> Iterator[Verdict]:
    """For a target on the CPU, whose kernels are the same with a draft, unless duo warns that texts may differ."""
    for name, one, other in pairs(dict(list(texts.items())[:2])):
        if not any(words in one.said for words in _INEXACT):
            same = first_difference(other.text, one.text) is None
            yield Verdict(f"text with --exact, target {name}, as without", Range(float(same), None, None), 1.0)


def pairs(texts: Runs) -> list[tuple[str, OneRun, OneRun]]:
    """The name of each run with a draft, the run without, and the run with it, if both ended."""
    items = list(texts.items())
    both = zip(items[::2], items[1::2], strict=True)
    return [(name, one, other) for (_, one), (name, other) in both if one is not None and other is not None]


def finished(runs: Runs) -> dict[str, OneRun]:
    """Those that did not fail."""
    return {name: run for name, run in runs.items() if run is not None}

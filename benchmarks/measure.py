"""Runs scenarios (contestants of duo.bench in rounds, or `duo bench` itself) and checks their bars."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.contestants import Setup
from duo.bench import formats
from duo.bench.contestant import Contestant
from duo.bench.facts import checksums
from duo.bench.process import last_line, run_process
from duo.bench.prompts import Prompt, rounds
from duo.bench.results import Figure, Results, Row, decode_rate
from duo.bench.rounds import Sample
from duo.bench.rounds import measure as take_samples
from duo.bench.statistics import Range, speed_up
from duo.config import ModelConfig
from duo.errors import DuoError

_SCREEN_PROMPTS, _FINALISTS, _SCREEN_TOKENS = 2, 2, 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure (None: not measured) and its required range."""

    name: str
    figure: Range | None
    least: float = -math.inf
    most: float = math.inf

    @property
    def passed(self) -> bool | None:
        """Whether the figure is within the range; None if not measured."""
        return None if self.figure is None else self.least <= self.figure.middle <= self.most

    def __str__(self) -> str:
        limits = [f"{word} {limit:g}" for word, limit in (("at least", self.least), ("at most", self.most))
                  if math.isfinite(limit)]  # fmt: skip
        verdict = {True: "pass", False: "MISSED", None: "not measured"}[self.passed]
        return f"{self.name}: {formats.spread(self.figure, 3)}; {', '.join(limits)}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        """As JSON types; null for no limit."""
        limits = {name: value if math.isfinite(value) else None
                  for name, value in (("least", self.least), ("most", self.most))}  # fmt: skip
        return {"name": self.name, "figure": self.figure, **limits, "passed": self.passed}


@dataclass(frozen=True, slots=True)
class Bar:
    """The required range of a contestant's figure, or of its ratio to another contestant's, as a geometric mean.

    Contestants are given by a prefix of their names; of several matches, the fastest is used.
    """

    contestant: str
    over: str | None = None
    least: float = -math.inf
    most: float = math.inf
    figure: Figure = decode_rate
    what: str = ""  # description of the figure, if it is not a rate

    def verdict(self, results: Results) -> Verdict:
        """Compare the results with the range."""
        names = [name for name in (self.contestant, self.over) if name is not None]
        found = [fastest(results, name) for name in names]
        label = " over ".join(c.name if c is not None else name for c, name in zip(found, names, strict=True))
        figure = None
        if None not in found:
            first, *others = [contestant for contestant in found if contestant is not None]
            values = (self.figure(sample.run) for sample in results.counting(first))
            figure = (
                results.speed_up(first, others[0], figure=self.figure)
                if others
                else speed_up([value for value in values if value])
            )
        return Verdict(f"{label}{self.what and f', {self.what}'}", figure, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results for one pair of models."""

    lines: Sequence[str]  # Markdown
    document: dict[str, Any]
    verdicts: Sequence[Verdict] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement and its pairs of models."""

    about: str
    pairs: Sequence[str] = ("smollm2-f16",)
    n_rounds: int = 5
    n_tokens: int = 256
    needs_programs: bool = False  # of llama.cpp

    def run(self, setup: Setup) -> Outcome:
        """Measure one pair. Raises DuoError."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Comparison(Scenario):
    """Contestants that run the same prompts, round by round."""

    contestants: Callable[[Setup], list[Contestant]] = lambda _: []
    screen: Callable[[Setup], list[Contestant]] = lambda _: []  # candidates, of which the fastest two are added
    baseline: str = ""  # a prefix, as in Bar
    bars: Callable[[Setup], Sequence[Bar]] = lambda _: ()
    columns: Sequence[str] = ("decode t/s", "speed-up", "accept %", "text as plain")
    figures: Mapping[str, Figure] = field(default_factory=dict)  # additional columns, with medians

    def run(self, setup: Setup) -> Outcome:
        """See Scenario. After Ctrl-C, returns the results so far."""
        results, complete = self.measure(setup)
        facts: dict[str, Any] = {"models": models(setup), "complete": complete}
        facts["baseline"] = results.baseline and results.baseline.name
        commands = ((c.name, getattr(c.writer, "command", None)) for c in results.contestants)
        facts["commands"] = {name: command(setup.job)[1:] for name, command in commands if command is not None}
        return Outcome(self.table(results), document(results, facts), self.verdicts(setup, results))

    def verdicts(self, setup: Setup, results: Results) -> Sequence[Verdict]:
        """Whether the results meet the bars."""
        return [bar.verdict(results) for bar in self.bars(setup)]

    def measure(self, setup: Setup) -> tuple[Results, bool]:
        """The results, and whether they are complete."""
        prompts = [
            Prompt(file.stem, file.read_text(encoding="utf-8").removesuffix("\n")) for file in setup.prompt_files
        ]

        def wanted(contestants: list[Contestant]) -> list[Contestant]:
            return [c for c in contestants if not setup.only or c.name.startswith(tuple(setup.only))]

        contestants = wanted(self.contestants(setup))
        if candidates := wanted(self.screen(setup)):
            few = Results(candidates)
            take(few, prompts[:_SCREEN_PROMPTS], setup, n_tokens=min(_SCREEN_TOKENS, setup.n_tokens))
            ranked = sorted(candidates, key=lambda contestant: mean_rate(few, contestant), reverse=True)
            contestants = [*ranked[:_FINALISTS], *contestants]
        results = Results(contestants)
        complete = take(results, rounds(prompts, setup.n_rounds), setup)
        results.baseline = fastest(results, self.baseline) or results.contestants[0]
        return results, complete

    def table(self, results: Results) -> list[str]:
        """A table of the contestants, and one of their rates by prompt."""
        names = {"speed-up": f"over {results.baseline.name}", "text as plain": "same text"} if results.baseline else {}
        columns = {"": lambda row: row["name"]} | {names.get(n, n): formats.COLUMNS[n] for n in self.columns}
        columns |= {name: formats.number(name, 1) for name in self.figures}
        rows = []
        for contestant in results.contestants:
            more: dict[str, Any] = {"name": contestant.name}
            for name, figure in self.figures.items():
                values = [value for s in results.counting(contestant) if (value := figure(s.run)) is not None]
                more[name] = median(values) if values else None
            rows.append(results.row(contestant) | more)
        return [*formats.table(rows, columns), "", *formats.markdown_table(formats.by_category(results))]


@dataclass(frozen=True, slots=True)
class Call:
    """One run of `duo bench`."""

    name: str
    modes: Sequence[str]
    more: Sequence[str] = ()
    programs: Sequence[str] = ()  # of llama.cpp, if they are built
    blank: str | None = None  # why it cannot be measured on this machine


@dataclass(frozen=True, slots=True)
class BenchTable(Scenario):
    """Runs of `duo bench`, shown in one table."""

    calls: Callable[[Setup], list[Call]] = lambda _: []
    columns: Sequence[str] = ()

    def run(self, setup: Setup) -> Outcome:
        documents = [bench(call, setup) for call in self.calls(setup)]
        return Outcome(self.table(documents), {"calls": documents})

    def table(self, documents: Sequence[dict[str, Any]]) -> list[str]:
        """One line per row; rows that cannot be measured have blank cells and the reason."""
        columns = {"": lambda row: row["name"]} | {name: formats.COLUMNS[name] for name in self.columns}
        rows: list[Row] = []
        for found in documents:
            call = f"{found['call']}: " if found["call"] else ""
            for mode in found["modes"] if found["blank"] else ():
                nothing: dict[str, Any] = {"name": f"{call}{mode} ({found['blank']})", "threads": "", "devices": ""}
                rows.append(defaultdict(lambda: None, nothing))
            for row in found["rows"]:
                k = "" if row["k"] is None else f" k={row['k']}"
                rows.append({**row, "name": f"{call}{row['mode']}{k}"})
        return formats.table(rows, columns)


def bench(call: Call, setup: Setup) -> dict[str, Any]:
    """Run `duo bench` and return its report, or the reason why it cannot run. Raises DuoError."""
    about = {"call": call.name, "blank": call.blank, "modes": call.modes, "more": call.more}
    if call.blank:
        return {**about, "rows": []}
    paths = [f"{name}={path}" for name in call.programs if (path := setup.peers / name).exists()]
    command = [
        *setup.duo, "bench", "-m", str(setup.target), "-md", str(setup.draft), "--modes", ",".join(call.modes),
        *call.more, "--peers", ",".join(paths) or "none", "-o", "json", "--raw",
        "--prompts", str(prompts_file(setup)), "-n", str(setup.n_tokens), "-r", str(setup.n_rounds),
    ]  # fmt: skip
    note(" ".join(["duo", *command[len(setup.duo) :]]))
    cost = run_process(command, setup.config("bench"))
    if cost.status:
        raise DuoError(f"duo bench exited with {cost.status}: {last_line(cost.stderr)}")
    found = json.loads(cost.stdout)
    for name in ("options", "peers"):  # these contain local paths
        del found[name]
    return {**about, **found}


def prompts_file(setup: Setup) -> Path:
    """Write the prompts as a file for `duo bench`, each as a separate category."""
    path = setup.folder / "prompts.txt"
    texts = {file.stem: file.read_text(encoding="utf-8").removesuffix("\n") for file in setup.prompt_files}
    path.write_text("".join("[{}]\n{}\n".format(name, text.replace("\n", "\\n")) for name, text in texts.items()))
    return path


def take(results: Results, prompts: Sequence[Prompt], setup: Setup, n_tokens: int = 0) -> bool:
    """Fill `results`. False after Ctrl-C."""

    def put(sample: Sample) -> None:
        results.add(sample)
        note(formats.progress(sample, results, len(prompts)))

    job = replace(setup.job, n_tokens=n_tokens or setup.n_tokens)
    with suppress(KeyboardInterrupt):
        take_samples(results.contestants, prompts, job, put, note, threading.Event(), warm_up=False)
        return True
    note("interrupted")
    return False


def document(results: Results, facts: dict[str, Any]) -> dict[str, Any]:
    """The document of `duo bench -o json`, with additional figures per run."""
    found = formats.document(results, facts)
    for i, sample in enumerate(results.samples):
        more = {f.name: getattr(sample.run, f.name) for f in fields(sample.run) if f.name not in ("text", "metrics")}
        found["runs"][i] |= {name: value for name, value in more.items() if value is not None}
    return found


def models(setup: Setup) -> dict[str, Any]:
    """Name, size and checksums of the files, which this loads into the page cache."""
    return {
        role: {
            "name": path.name,
            "bytes": path.stat().st_size,
            "quantisation": None,
            "sha256": checksums(ModelConfig(path), lambda *_: None, threading.Event()),
        }
        for role, path in (("target", setup.target), ("draft", setup.draft))
    }


def fastest(results: Results, name: str) -> Contestant | None:
    """The fastest contestant whose name starts with `name`, or None."""
    found = [contestant for contestant in results.contestants if contestant.name.startswith(name)]
    return max(found, key=lambda contestant: mean_rate(results, contestant), default=None)


def mean_rate(results: Results, contestant: Contestant) -> float:
    """The geometric mean of its tokens/s in the counted rounds."""
    rates = [sample.run.tokens_per_s for sample in results.counting(contestant)]
    return geometric_mean(rates) if rates else 0.0


def note(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)

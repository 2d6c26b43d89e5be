"""The one runner: contestants in rounds, the bars that they must meet, and the facts that results record."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.contestants import Setup
from duo.bench import results
from duo.bench.results import COLUMNS, Range, Results, markdown_table, number, progress, speed_up, spread, table
from duo.bench.rounds import RATE, Contestant, Prompt, Sample, rounds
from duo.bench.rounds import measure as take_samples
from duo.config import ModelConfig
from duo.engine.cores import allowed_cores


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure (None: not measured) and its required range."""

    name: str
    figure: Range | None
    least: float | None = None
    most: float | None = None

    @property
    def passed(self) -> bool | None:
        """Whether the figure is within the range; None if not measured."""
        if self.figure is None:
            return None
        found = self.figure.middle
        return (self.least is None or self.least <= found) and (self.most is None or found <= self.most)

    def __str__(self) -> str:
        limits = [f"at least {self.least:g}"] if self.least is not None else []
        limits += [f"at most {self.most:g}"] if self.most is not None else []
        verdict = {True: "pass", False: "MISSED", None: "not measured"}[self.passed]
        return f"{self.name}: {spread(self.figure, 3)}; {', '.join(limits)}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "figure": self.figure, "passed": self.passed}


def verdict(name: str, value: float, **limits: float) -> Verdict:
    return Verdict(name, Range(value), **limits)


@dataclass(frozen=True, slots=True)
class Bar:
    """The required range of a contestant's figure, or of its ratio to another contestant's, as a geometric mean.

    Contestants are given by a prefix of their names; of several matches, the fastest is used.
    """

    contestant: str
    over: str | None = None
    least: float | None = None
    most: float | None = None
    figure: str = RATE

    def verdict(self, results: Results) -> Verdict:
        names = [name for name in (self.contestant, self.over) if name is not None]
        found = [fastest(results, name) for name in names]
        label = " over ".join(c.name if c is not None else name for c, name in zip(found, names, strict=True))
        label += f", {self.figure}" if self.figure != RATE else ""
        first, *others = found
        figure = None
        if first is not None and not others:
            figure = speed_up([value for s in results.counting(first) if (value := s.run.figure(self.figure))])
        elif first is not None and others[0] is not None:
            figure = results.speed_up(first, others[0], self.figure)
        return Verdict(label, figure, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Outcome:
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

    def run(self, setup: Setup) -> Outcome:
        """Measure one pair. Raises DuoError."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Comparison(Scenario):
    """Contestants that run the same prompts, round by round."""

    contestants: Callable[[Setup], list[Contestant]] = lambda _: []
    baseline: str = ""  # a prefix, as in Bar
    bars: Sequence[Bar] = ()
    columns: Sequence[str] = ("decode t/s", "speed-up", "accept %", "text as plain")  # of `duo bench`, or figures

    def run(self, setup: Setup) -> Outcome:
        """See Scenario. After Ctrl-C, returns the results so far."""
        results, complete = self.measure(setup)
        about: dict[str, Any] = {"models": models(setup), "complete": complete}
        about["baseline"] = results.baseline and results.baseline.name
        commands = ((c.name, getattr(c.write, "command", None)) for c in results.contestants)
        about["commands"] = {name: command(setup.job)[1:] for name, command in commands if command is not None}
        return Outcome(self.table(results), results.document() | about, self.verdicts(results))

    def verdicts(self, results: Results) -> list[Verdict]:
        return [bar.verdict(results) for bar in self.bars]

    def measure(self, setup: Setup) -> tuple[Results, bool]:
        results = Results(setup.chosen(self.contestants(setup)))
        complete = take(results, rounds(prompts_of(setup), setup.n_rounds), setup)
        results.baseline = fastest(results, self.baseline) or results.contestants[0]
        return results, complete

    def table(self, results: Results) -> list[str]:
        """A table of the contestants, and one of their rates by prompt."""
        names = {"speed-up": f"over {results.baseline.name}", "text as plain": "same text"} if results.baseline else {}
        columns = {"": lambda row: row["name"]}
        columns |= {names.get(name, name): COLUMNS.get(name) or number(name, 2) for name in self.columns}
        rows = [results.row(contestant) | {"name": contestant.name} for contestant in results.contestants]
        return [*table(rows, columns), "", *markdown_table(by_prompt(results))]


def by_prompt(results: Results) -> list[list[str]]:
    """The rate of each contestant by prompt, and over the baseline's."""
    categories = list(dict.fromkeys(sample.prompt.category for sample in results.samples))
    lines = [["decode t/s", *categories]]
    for contestant in results.contestants:
        cells = []
        for category in categories:
            samples = [sample for sample in results.counting(contestant) if sample.prompt.category == category]
            rates = [sample.run.tokens_per_s for sample in samples]
            pairs = [(sample, other) for sample in samples if (other := results.baseline_sample(sample)) is not None]
            gain = speed_up([one.run.tokens_per_s / other.run.tokens_per_s for one, other in pairs])
            over = f" (×{gain.middle:.2f})" if gain is not None else ""
            cells.append(f"{geometric_mean(rates):.1f}{over}" if rates else "")
        lines.append([contestant.name, *cells])
    return lines


def prompts_of(setup: Setup) -> list[Prompt]:
    return [Prompt(file.stem, file.read_text(encoding="utf-8").removesuffix("\n")) for file in setup.prompt_files]


def in_time(prompts: Sequence[Prompt], end: float) -> Iterator[Prompt]:
    """Those of the rounds that end before `end` if none takes longer than the longest so far; at least one begins."""
    last, longest = time.monotonic(), 0.0
    for i, prompt in enumerate(prompts):
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        if i and now + longest > end:
            return
        yield prompt


def take(results: Results, prompts: Sequence[Prompt], setup: Setup, *, warm_up: bool = False) -> bool:
    """Add samples of all contestants, until the time is over. False after Ctrl-C."""
    first, stop = len({sample.i_round for sample in results.samples}), threading.Event()

    def put(sample: Sample) -> None:
        results.samples.append(replace(sample, i_round=first + sample.i_round))
        note(progress(results.samples[-1], results, first + len(prompts)))
        if time.monotonic() > setup.end:
            stop.set()

    with suppress(KeyboardInterrupt):
        rounds, first_prompt = in_time(prompts, setup.end), prompts[-1] if warm_up else None
        take_samples(results.contestants, rounds, setup.job, put, note, stop, first_prompt)
        if stop.is_set():
            note("the time is over (--minutes): what was measured counts")
        return True
    note("interrupted")
    return False


def fastest(results: Results, name: str) -> Contestant | None:
    """The fastest contestant whose name starts with `name`, or None."""
    found = [contestant for contestant in results.contestants if contestant.name.startswith(name)]
    return max(found, key=lambda contestant: mean_rate(results, contestant), default=None)


def mean_rate(results: Results, contestant: Contestant) -> float:
    """The geometric mean of its tokens/s in the counted rounds."""
    rates = [sample.run.tokens_per_s for sample in results.counting(contestant)]
    return geometric_mean(rates) if rates else 0.0


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def circumstances() -> dict[str, Any]:
    """Those of `duo bench`, the load before the measurement, and the caches that all usable cores share."""
    found: dict[str, Any] = results.circumstances() | {"load_before": round(os.getloadavg()[0], 2)}
    found["hardware"]["shared_caches"] = _shared_caches()
    return found


def _shared_caches() -> list[str]:
    """Such as L3; empty if the system does not list caches."""
    cores, found = allowed_cores(), []
    with suppress(OSError, ValueError):
        for folder in sorted(Path(f"/sys/devices/system/cpu/cpu{min(cores)}/cache").glob("index*")):
            level, shared = ((folder / name).read_text(encoding="ascii") for name in ("level", "shared_cpu_list"))
            ranges = [part.partition("-") for part in shared.split(",")]
            if cores <= {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)}:
                found.append(f"L{level.strip()}")
    return found


def models(setup: Setup) -> dict[str, Any]:
    """Name, size and checksums of the files, which this loads into the page cache."""
    return {
        role: {"name": path.name, "bytes": path.stat().st_size, "sha256": _checksums(path)}
        for role, path in (("target", setup.target), ("draft", setup.draft))
    }


def _checksums(path: Path) -> dict[str, str]:
    found = {}
    for part in ModelConfig(path).shards:
        digest = hashlib.sha256()
        with part.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
        found[part.name] = digest.hexdigest()
    return found

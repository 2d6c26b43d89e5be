"""The rows of the tables of bars: pairs of models on prompts, and what duo has to reach there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.contestants import Contestant, completion, duo_alone, duo_pair, taking_turns
from benchmarks.measure import ModelFile
from benchmarks.options import PROMPTS
from benchmarks.report import models_json, results_json
from benchmarks.summary import REFERENCE, Bar, Results

WORST_PROMPT, MEAN_OF_ROWS = 0.95, 1.10
ACCURACY = 0.15  # of the simulated rate


@dataclass(frozen=True, slots=True)
class Row:
    """One pair of models on one folder of prompts."""

    name: str
    pair: str
    folder: Path
    over_peer: float
    over_plain: float | None = None  # None: plain decoding is one of the peers

    @property
    def prompt_files(self) -> list[Path]:
        """All prompts of the folder."""
        return sorted(self.folder.glob("*.txt"))


@dataclass(frozen=True, slots=True)
class Part:
    """One table: its rows, the peers of which the fastest counts, and how duo is called."""

    rows: tuple[Row, ...]
    peers: Callable[[Path], list[Contestant]]
    duo: Callable[[list[str]], Contestant]
    joint_bars: bool = False  # for the worst prompt and the mean of all rows


def _all_peers(programs: Path) -> list[Contestant]:
    return [completion(programs, 1), completion(programs, 2), *taking_turns(programs, ("1+1", "2"))]


STORIES = "tinyllama-f16-stories"
PARTS = {
    "main": Part(
        (
            Row("smollm2-f16", "smollm2-f16", PROMPTS, 1.02),
            Row("smollm2-f32", "smollm2-f32", PROMPTS, 1.05),
            Row("tinyllama-f16", "tinyllama-f16", PROMPTS / "tinyllama", 1.15),
            Row("tinyllama-f32", "tinyllama-f32", PROMPTS / "tinyllama", 1.25),
            Row(f"{STORIES} on stories", STORIES, PROMPTS / "stories", 1.10),
            Row(f"{STORIES} on code", STORIES, PROMPTS / "code", 0.97),
        ),
        _all_peers,
        duo_alone,
        joint_bars=True,
    ),
    "one-core": Part(
        (
            Row("smollm2-f32", "smollm2-f32", PROMPTS, 1.65, over_plain=1.45),
            Row("tinyllama-f32", "tinyllama-f32", PROMPTS / "tinyllama", 1.9, over_plain=2.0),
        ),
        partial(taking_turns, threads=("1+1",)),
        partial(duo_pair, threads=1, draft_threads=1),
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured for one row."""

    row: Row
    models: tuple[ModelFile, ModelFile]
    screen: Results
    results: Results
    finalists: list[Contestant]  # the fastest peers of the screen
    duo: Contestant

    @property
    def best_peer(self) -> str:
        """The finalist with the highest mean beside duo."""
        return (self.results.ranked(self.finalists) or self.finalists)[0].name

    @property
    def ratios(self) -> dict[str, float]:
        """duo over the best peer, prompt by prompt."""
        return self.results.ratios(self.duo.name, self.best_peer)

    @property
    def ratio(self) -> float | None:
        """The mean of those that do not loop."""
        return self.results.ratio(self.duo.name, self.best_peer)

    @property
    def cold_tps(self) -> float:
        """duo's first run, with no profile of this pair."""
        return self.results.samples(self.duo.name, self.results.prompts[0])[0].run.tokens_per_s

    @property
    def accuracy(self) -> float | None:
        """duo's measured rate over the one that it simulates."""
        return self.results.accuracy(self.duo.name)

    def bars(self) -> list[Bar]:
        """The requirements of this row."""
        name = f"{self.row.name}: {self.duo.name}"
        found = [Bar(name, self.best_peer, self.ratio, self.row.over_peer)]
        if self.row.over_plain is not None:
            found += [Bar(name, REFERENCE, self.results.ratio(self.duo.name, REFERENCE), self.row.over_plain)]
        off = None if self.accuracy is None else abs(self.accuracy - 1)
        return [*found, Bar(f"{name}, simulated rate off by", None, off, ACCURACY, at_most=True)]

    def as_json(self, n_tokens: int, screen_tokens: int) -> dict[str, Any]:
        """Every figure of both phases."""
        return {
            "pair": self.row.pair,
            "models": models_json(*self.models),
            "best_peer": self.best_peer,
            "ratio": self.ratio,
            "ratios": self.ratios,
            "cold": self.cold_tps,
            "measured_over_predicted": self.accuracy,
            "screen": results_json(self.screen, screen_tokens),
            **results_json(self.results, n_tokens),
        }


def bars_of_all(part: Part, outcomes: Sequence[Outcome]) -> list[Bar]:
    """The requirements of every row, and those of all together."""
    found = [bar for outcome in outcomes for bar in outcome.bars()]
    if not part.joint_bars:
        return found
    singles = {
        f"{outcome.row.name}, {prompt}": outcome.ratios[prompt]
        for outcome in outcomes
        for prompt in outcome.results.counting()
    }
    worst = min(singles, key=singles.__getitem__, default="none")
    ratios = [outcome.ratio for outcome in outcomes if outcome.ratio is not None]
    mean = geometric_mean(ratios) if len(ratios) == len(part.rows) else None
    return [
        *found,
        Bar(f"worst single prompt ({worst})", None, singles.get(worst), WORST_PROMPT),
        Bar("geometric mean of all rows", None, mean, MEAN_OF_ROWS),
    ]

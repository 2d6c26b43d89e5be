"""What the runs come to: medians, means over the prompts, texts, and the bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median
from typing import Any

from benchmarks.contestants import N_CTX, Contestant, DuoRun
from benchmarks.measure import ModelFile
from duo.bench.contestant import Run
from duo.bench.process import Cost
from duo.bench.texts import distinct_share, first_difference, loops

REFERENCE = "completion 1"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant on one prompt."""

    run: Run
    cost: Cost


@dataclass(frozen=True, slots=True)
class Bar:
    """One requirement."""

    name: str
    against: str | None
    figure: float | None  # None: it was not measured
    required: float
    at_most: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether it is met; None where it was not measured."""
        if self.figure is None:
            return None
        return self.figure <= self.required if self.at_most else self.figure >= self.required

    def as_json(self) -> dict[str, Any]:
        """All of it, and the verdict."""
        return {**asdict(self), "passed": self.passed}


class Results:
    """All samples of one comparison, by contestant and prompt."""

    def __init__(self, contestants: Sequence[Contestant], prompts: Sequence[str]) -> None:
        self.contestants = list(contestants)
        self.prompts = list(prompts)
        self._samples: dict[tuple[str, str], list[Sample]] = {}

    def add(self, contestant: str, prompt: str, sample: Sample) -> None:
        """Keep one sample."""
        self._samples.setdefault((contestant, prompt), []).append(sample)

    def samples(self, contestant: str, prompt: str) -> list[Sample]:
        """The samples of one contestant on one prompt, in the order they were taken."""
        return self._samples.get((contestant, prompt), [])

    def reference_text(self, prompt: str) -> str:
        """The plain baseline's text, or the first contestant's where the baseline does not take part."""
        names = [contestant.name for contestant in self.contestants]
        return self.samples(REFERENCE if REFERENCE in names else names[0], prompt)[0].run.text

    def looping(self) -> list[str]:
        """The prompts whose text loops; they are left out of every mean."""
        return [name for name in self.prompts if loops(self.reference_text(name))]

    def tps(self, contestant: str, prompt: str) -> float:
        """The median of its tokens/s on one prompt."""
        return median(run.tokens_per_s for run in self._runs(contestant, prompt))

    def counting(self) -> list[str]:
        """The prompts whose text does not loop."""
        left_out = self.looping()
        return [name for name in self.prompts if name not in left_out]

    def mean_tps(self, contestant: str) -> float | None:
        """The geometric mean over the prompts that do not loop; None if it was not measured."""
        kept = self.counting()
        if not kept or not self.samples(contestant, kept[0]):
            return None
        return geometric_mean([self.tps(contestant, prompt) for prompt in kept])

    def ratio(self, contestant: str, baseline: str) -> float | None:
        """How many times as fast as the baseline it is by these means."""
        own, other = self.mean_tps(contestant), self.mean_tps(baseline)
        return own / other if own is not None and other is not None else None

    def ratios(self, contestant: str, baseline: str) -> dict[str, float]:
        """The same for each prompt, the looping ones too."""
        return {prompt: self.tps(contestant, prompt) / self.tps(baseline, prompt) for prompt in self.prompts}

    def accuracy(self, contestant: str) -> float | None:
        """Measured over predicted rate: the geometric mean over the prompts that do not loop of the medians."""
        medians = [
            median(found)
            for prompt in self.counting()
            if (found := [r.tokens_per_s / p for r in self._runs(contestant, prompt) if (p := _predicted(r))])
        ]
        return geometric_mean(medians) if medians else None

    def _runs(self, contestant: str, prompt: str) -> list[Run]:
        return [sample.run for sample in self.samples(contestant, prompt)]

    def first_byte_s(self, contestant: str) -> float | None:
        """From command to first text: the prompt with the longest median decides."""
        times = [
            median(found)
            for prompt in self.prompts
            if (found := [s.cost.first_byte_s or math.inf for s in self.samples(contestant, prompt)])
        ]
        return max(times, default=None)

    def peak_bytes(self, contestant: str) -> int | None:
        """The highest peak of all its runs."""
        peaks = [s.cost.peak_bytes for prompt in self.prompts for s in self.samples(contestant, prompt)]
        return max(peaks, default=None)

    def differences(self, contestant: str) -> dict[str, int]:
        """The prompts on which any of its texts parts from the reference, and at which character."""
        found = {}
        for prompt in self.prompts:
            reference = self.reference_text(prompt)
            places = [first_difference(run.text, reference) for run in self._runs(contestant, prompt)]
            if parted := [place for place in places if place is not None]:
                found[prompt] = min(parted)
        return found

    def ranked(self, contestants: Sequence[Contestant]) -> list[Contestant]:
        """Those of them that were measured, the fastest first, by their means."""
        rates = [(rate, c) for c in contestants if (rate := self.mean_tps(c.name)) is not None]
        return [contestant for _, contestant in sorted(rates, key=lambda found: found[0], reverse=True)]

    def bars(self, target: ModelFile, draft: ModelFile) -> list[Bar]:
        """The requirements, measured."""
        plain, pair, ratio = "duo plain 1", "duo 1+1", self.ratio
        speculative = self.ranked([c for c in self.contestants if c.program == "llama-speculative-simple"])
        best = speculative[0].name if speculative else "the best speculative"
        peak = self.peak_bytes(pair)
        needed = sum(model.size + model.kv_cache_bytes(N_CTX) for model in (target, draft))
        over_mb = (peak - needed) / 1e6 if peak is not None else None
        return [
            Bar("duo without a draft, 1 thread", REFERENCE, ratio(plain, REFERENCE), 0.97),
            Bar("duo, one core each", REFERENCE, ratio(pair, REFERENCE), 1.08),
            Bar("duo, one core each", "completion 2", ratio(pair, "completion 2"), 0.82),
            Bar("duo, one core each", best, ratio(pair, best), 1.30),
            Bar("peak memory over files and caches, MB", None, over_mb, 250.0, at_most=True),
            Bar("command to first token, s", None, self.first_byte_s(pair), 1.5, at_most=True),
        ]

    def as_json(self) -> dict[str, Any]:
        """Every figure behind the table."""
        return {
            "prompts": {
                prompt: {
                    "distinct_4grams": round(distinct_share(self.reference_text(prompt)), 3),
                    "left_out": prompt in self.looping(),
                }
                for prompt in self.prompts
            },
            "contestants": {c.name: self._contestant_json(c) for c in self.contestants},
        }

    def _contestant_json(self, contestant: Contestant) -> dict[str, Any]:
        return {
            "program": contestant.program,
            "threads": contestant.threads,
            "threads_draft": contestant.draft_threads,
            **contestant.options,
            "tokens_per_s": self.mean_tps(contestant.name),
            "peak_bytes": self.peak_bytes(contestant.name),
            "first_byte_s": self.first_byte_s(contestant.name),
            "text_differs_at": self.differences(contestant.name),
            "runs": {
                prompt: [
                    {
                        "tokens": sample.run.tokens,
                        "tokens_per_s": sample.run.tokens_per_s,
                        "predicted_tokens_per_s": _predicted(sample.run),
                        "wall_s": round(sample.cost.wall_s, 4),
                        "first_byte_s": sample.cost.first_byte_s,
                        "peak_bytes": sample.cost.peak_bytes,
                    }
                    for sample in self.samples(contestant.name, prompt)
                ]
                for prompt in self.prompts
            },
        }


def _predicted(run: Run) -> float | None:
    return run.predicted_tokens_per_s if isinstance(run, DuoRun) else None

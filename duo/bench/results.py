"""The samples of a benchmark and the rows computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from duo.bench.contestant import PLAIN, Contestant, Run
from duo.bench.rounds import Sample
from duo.bench.statistics import Range, middle_and_quartiles, speed_up
from duo.bench.texts import first_difference

ALL = "all"

# The figures of one contestant for one category of prompts or all, as in the JSON; None: not measured.
Row = dict[str, Any]
Figure = Callable[[Run], float | None]


def decode_rate(run: Run) -> float:
    """Tokens/s of generation."""
    return run.tokens_per_s


class Results:
    """The samples of all rounds, in the order of measurement."""

    def __init__(self, contestants: Sequence[Contestant], baseline: Contestant | None = None) -> None:
        """Speed-ups and texts are relative to `baseline`, by default plain decoding."""
        self.contestants = list(contestants)
        self.samples: list[Sample] = []
        self.baseline = baseline or next((c for c in contestants if c.mode == PLAIN), None)

    def add(self, sample: Sample) -> None:
        """Add one sample."""
        self.samples.append(sample)

    @property
    def categories(self) -> list[str]:
        """The measured categories."""
        return list(dict.fromkeys(sample.prompt.category for sample in self.samples))

    @property
    def n_rounds(self) -> int:
        """The number of rounds with samples."""
        return len({sample.i_round for sample in self.samples})

    def looping(self) -> set[int]:
        """The rounds in which the text of the baseline (or else of the first contestant) loops."""
        reference = self.baseline or self.contestants[0]
        return {sample.i_round for sample in self.samples if sample.contestant is reference and sample.loops}

    def of(self, contestant: Contestant, category: str = ALL) -> list[Sample]:
        """All samples of a contestant."""
        return [
            sample
            for sample in self.samples
            if sample.contestant is contestant and category in (ALL, sample.prompt.category)
        ]

    def counting(self, contestant: Contestant, category: str = ALL) -> list[Sample]:
        """Its samples whose text does not loop, in rounds that do not loop."""
        looping = self.looping()
        return [s for s in self.of(contestant, category) if s.i_round not in looping and not s.loops]

    def ratio(self, sample: Sample) -> float | None:
        """Its rate relative to the baseline's in the same round."""
        other = None if sample.contestant is self.baseline else self._baseline_run(sample.i_round)
        return None if other is None else sample.run.tokens_per_s / other.tokens_per_s

    def speed_up(
        self, contestant: Contestant, over: Contestant, category: str = ALL, figure: Figure = decode_rate
    ) -> Range | None:
        """The ratio of its `figure` to that of `over`, across the rounds in which both samples count."""
        others = {sample.i_round: figure(sample.run) for sample in self.counting(over, category)}
        return speed_up(
            [
                value / other
                for sample in self.counting(contestant, category)
                if (value := figure(sample.run)) and (other := others.get(sample.i_round))
            ]
        )

    def rows(self) -> list[Row]:
        """One row per contestant, over all prompts."""
        return [self.row(contestant) for contestant in self.contestants]

    def rows_by_category(self) -> list[Row]:
        """One row per contestant and category."""
        return [self.row(contestant, category) for contestant in self.contestants for category in self.categories]

    def row(self, contestant: Contestant, category: str = ALL) -> Row:
        """Its figures. Looping samples and rounds are excluded, except from the comparison of texts."""
        samples = self.of(contestant, category)
        runs = [sample.run for sample in self.counting(contestant, category)]
        rate, gain = middle_and_quartiles([run.tokens_per_s for run in runs]), None
        if self.baseline is not None and contestant is not self.baseline:
            gain = self.speed_up(contestant, self.baseline, category)
        n_verified = sum(run.n_verified or 0 for run in runs)
        differences = self._differences(samples)
        where, place = differences[0] if differences else (None, None)
        return {
            "mode": contestant.mode,
            "devices": contestant.devices,
            "threads": contestant.threads,
            "k": contestant.n_max,
            "category": category,
            "runs": len(runs),
            "looping_runs": len(samples) - len(runs),
            "prompt_tokens_per_s": _median(run.prompt_tokens_per_s for run in runs),
            **_range(rate, "tokens_per_s", "tokens_per_s_lower_quartile", "tokens_per_s_upper_quartile"),
            "ms_per_token": None if rate is None else 1000 / rate.middle,
            **_range(gain, "speed_up", "speed_up_low", "speed_up_high"),
            "accept_rate": sum(run.n_accepted or 0 for run in runs) / n_verified if n_verified else None,
            "tokens_per_decode": _median(run.tokens_per_decode for run in runs),
            "target_ms_per_decode": _median(run.target_ms for run in runs),
            "draft_ms_per_token": _median(run.draft_ms for run in runs),
            "hidden": _median(run.hidden for run in runs),
            "waste": _median(run.waste for run in runs),
            "first_token_s": _median(run.first_token_s for run in runs),
            "engine_us_per_step": _median(run.own_us for run in runs),
            "draft_us_per_decode": _median(run.draft_own_us for run in runs),
            "same_text": None if differences is None else not differences,
            "differs_in": where,
            "differs_at": place,
        }

    def _baseline_run(self, i_round: int) -> Run | None:
        found = (s.run for s in self.samples if s.contestant is self.baseline and s.i_round == i_round)
        return next(found, None)

    def _differences(self, samples: Sequence[Sample]) -> list[tuple[str, int]] | None:
        """Category and index of the first difference from the baseline, per text; None if no texts were compared."""
        found, compared = [], False
        for sample in samples:
            other = self._baseline_run(sample.i_round)
            if other is None or not other.text or sample.contestant is self.baseline:
                continue
            compared = True
            if (place := first_difference(sample.run.text, other.text)) is not None:
                found.append((sample.prompt.category, place))
        return found if compared else None


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None


def _range(found: Range | None, *names: str) -> dict[str, float | None]:
    return dict(zip(names, found or (None, None, None), strict=True))

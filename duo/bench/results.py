"""The samples of a benchmark, and the rows computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from duo.bench.rounds import RATE, Contestant, Sample, distinct_share, first_difference

# Two-sided 95 % quantiles of Student's t distribution with 2 to 10 degrees of freedom; beyond, 1.96 + 2.46 / (n - 0.7)
_STUDENT = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

Row = dict[str, Any]  # the figures of one contestant, as in the JSON; None: not measured


class Range(NamedTuple):
    """A figure and its range; None where there are too few runs for one."""

    middle: float
    low: float | None = None
    high: float | None = None


def middle_and_quartiles(values: Sequence[float]) -> Range | None:
    """The median, with quartiles for more than one value; None without values."""
    if not values:
        return None
    low, middle, high = (float(quartile) for quartile in np.percentile(values, (25, 50, 75)))
    return Range(middle, low, high) if len(values) > 1 else Range(middle)


def speed_up(ratios: Sequence[float]) -> Range | None:
    """The geometric mean of ratios of runs of the same round, with its 95 % interval; None without ratios.

    The interval is Student's t interval of the mean of the logarithms, for which it takes three.
    """
    if not ratios:
        return None
    logs, freedom = np.log(ratios), len(ratios) - 1
    middle = math.exp(logs.mean())
    if freedom < 2:
        return Range(middle)
    quantile = _STUDENT[freedom - 2] if freedom <= 10 else 1.96 + 2.46 / (freedom - 0.7)
    reach = quantile * logs.std(ddof=1) / math.sqrt(len(logs))
    return Range(middle, middle * math.exp(-reach), middle * math.exp(reach))


class Results:
    """The samples of all rounds, in the order of measurement."""

    def __init__(self, contestants: Sequence[Contestant], baseline: Contestant | None = None) -> None:
        """Speed-ups and texts are relative to `baseline`, by default plain decoding."""
        self.contestants = list(contestants)
        self.samples: list[Sample] = []
        self.baseline = baseline or next((c for c in contestants if c.mode in ("plain", "off")), None)

    def looping(self) -> set[int]:
        """The rounds in which the text of the baseline (or else of the first contestant) loops."""
        reference = self.baseline or self.contestants[0]
        return {sample.i_round for sample in self.samples if sample.contestant is reference and sample.loops}

    def of(self, contestant: Contestant) -> list[Sample]:
        """All samples of a contestant."""
        return [sample for sample in self.samples if sample.contestant is contestant]

    def counting(self, contestant: Contestant) -> list[Sample]:
        """Its samples whose text does not loop, in rounds that do not loop."""
        looping = self.looping()
        return [sample for sample in self.of(contestant) if sample.i_round not in looping and not sample.loops]

    def speed_up(self, contestant: Contestant, over: Contestant, figure: str = RATE) -> Range | None:
        """The ratio of its `figure` to that of `over`, over the rounds in which both count."""
        others = {sample.i_round: sample.run.figure(figure) for sample in self.counting(over)}
        pairs = ((sample.run.figure(figure), others.get(sample.i_round)) for sample in self.counting(contestant))
        return speed_up([first / second for first, second in pairs if first and second])

    def row(self, contestant: Contestant) -> Row:
        """Its figures. Looping samples and rounds are excluded, except from the comparison of texts."""
        samples, runs = self.of(contestant), [sample.run for sample in self.counting(contestant)]
        rate, gain = middle_and_quartiles([run.tokens_per_s for run in runs]), None
        if self.baseline is not None and contestant is not self.baseline:
            gain = self.speed_up(contestant, self.baseline)
        verified, accepted = (sum(run.figures.get(name) or 0 for run in runs) for name in ("verified", "accepted"))
        differences = self._differences(samples)
        where, place = differences[0] if differences else (None, None)
        row: Row = {
            "mode": contestant.mode, "devices": contestant.devices, "threads": contestant.threads,
            "k": contestant.n_max, "runs": len(runs), "looping_runs": len(samples) - len(runs),
            **dict(zip(_RATES, rate or (None, None, None), strict=True)),
            "ms_per_token": rate and 1000 / rate.middle,
            **dict(zip(_GAINS, gain or (None, None, None), strict=True)),
            "accept_rate": accepted / verified if verified else None,
        }  # fmt: skip
        for name in dict.fromkeys(name for run in runs for name in run.figures):
            known = [value for run in runs if (value := run.figures.get(name)) is not None]
            row[name] = median(known) if known else None
        same = None if differences is None else not differences
        return row | {"same_text": same, "differs_in": where, "differs_at": place}

    def baseline_sample(self, sample: Sample) -> Sample | None:
        """The baseline's in the same round; None for itself, or if there is none."""
        if sample.contestant is self.baseline:
            return None
        found = (s for s in self.samples if s.contestant is self.baseline and s.i_round == sample.i_round)
        return next(found, None)

    def _differences(self, samples: Sequence[Sample]) -> list[tuple[str, int]] | None:
        """Category and index of the first difference from the baseline, per text; None if no texts were compared."""
        pairs = [(sample, other) for sample in samples if (other := self.baseline_sample(sample)) and other.run.text]
        places = [(s.prompt.category, first_difference(s.run.text, other.run.text)) for s, other in pairs]
        return [(category, place) for category, place in places if place is not None] if pairs else None

    def document(self) -> dict[str, Any]:
        """All rows and all runs, as JSON types."""
        return {"rows": [self.row(each) for each in self.contestants], "runs": [_as_json(s) for s in self.samples]}


_RATES = ("tokens_per_s", "tokens_per_s_lower_quartile", "tokens_per_s_upper_quartile")
_GAINS = ("speed_up", "speed_up_low", "speed_up_high")


def _as_json(sample: Sample) -> dict[str, Any]:
    run, contestant = sample.run, sample.contestant
    return {
        "round": sample.i_round + 1, "category": sample.prompt.category, "mode": contestant.mode,
        "k": contestant.n_max, "tokens": run.tokens, "tokens_per_s": run.tokens_per_s, **run.figures,
        "distinct_4grams": round(distinct_share(run.text, sample.prompt.text), 3), "loops": sample.loops,
        "text": run.text,
    }  # fmt: skip

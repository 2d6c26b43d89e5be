"""What the samples of a benchmark come to: the rows of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from duo.bench.contestant import PLAIN, Contestant, Run
from duo.bench.rounds import Sample
from duo.bench.statistics import Range, middle_and_quartiles, speed_up
from duo.bench.texts import first_difference, loops

ALL = "all"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text parts from plain decoding's."""

    category: str
    character: int


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant on one category of prompts, or on all; None where there is nothing to say."""

    contestant: Contestant
    category: str
    n_runs: int  # that count
    n_looping: int  # left out, because the text loops
    prompt_tokens_per_s: float | None
    tokens_per_s: Range | None  # the median and the quartiles
    speed_up: Range | None  # over plain
    accept_rate: float | None  # of all candidates that were verified in these runs
    tokens_per_decode: float | None
    target_ms: float | None
    draft_ms: float | None
    hidden: float | None
    waste: float | None
    first_token_s: float | None
    same_text: bool | None  # as plain; None for plain itself, or without it
    difference: Difference | None  # the first one

    @property
    def ms_per_token(self) -> float | None:
        """The inverse of the median rate."""
        return None if self.tokens_per_s is None else 1000 / self.tokens_per_s.middle


class Results:
    """The samples of all rounds, in the order in which they were taken."""

    def __init__(self, contestants: Sequence[Contestant]) -> None:
        self.contestants = list(contestants)
        self.samples: list[Sample] = []
        self._plain = next((c for c in contestants if c.mode == PLAIN), None)

    def add(self, sample: Sample) -> None:
        """Keep one sample."""
        self.samples.append(sample)

    @property
    def categories(self) -> list[str]:
        """The categories that were measured."""
        return list(dict.fromkeys(sample.prompt.category for sample in self.samples))

    def looping(self) -> set[int]:
        """The rounds in which plain decoding's text loops or, without it, that of the first contestant."""
        judge = self._plain or self.contestants[0]
        return {sample.i_round for sample in self.samples if sample.contestant is judge and loops(sample.run.text)}

    def of(self, contestant: Contestant, category: str = ALL) -> list[Sample]:
        """Its samples, the looping ones too."""
        return [
            sample
            for sample in self.samples
            if sample.contestant is contestant and category in (ALL, sample.prompt.category)
        ]

    def ratio(self, sample: Sample) -> float | None:
        """How many times as fast it is as plain decoding in the same round."""
        plain = self._plain_run(sample.i_round)
        if plain is None or sample.contestant is self._plain:
            return None
        return sample.run.tokens_per_s / plain.tokens_per_s

    def rows(self) -> list[Row]:
        """One for each contestant on all prompts."""
        return [self.row(contestant) for contestant in self.contestants]

    def rows_by_category(self) -> list[Row]:
        """One for each contestant and category."""
        return [self.row(contestant, category) for contestant in self.contestants for category in self.categories]

    def row(self, contestant: Contestant, category: str = ALL) -> Row:
        """What its samples come to; those that loop, or whose round does, only count where texts are compared."""
        samples, looping = self.of(contestant, category), self.looping()
        counting = [sample for sample in samples if sample.i_round not in looping and not loops(sample.run.text)]
        runs = [sample.run for sample in counting]

        def middle(figure: Callable[[Run], float | None]) -> float | None:
            found = [value for run in runs if (value := figure(run)) is not None]
            return median(found) if found else None

        differences = self._differences(samples)
        return Row(
            contestant,
            category,
            len(counting),
            len(samples) - len(counting),
            prompt_tokens_per_s=middle(lambda run: run.prompt_tokens_per_s),
            tokens_per_s=middle_and_quartiles([run.tokens_per_s for run in runs]),
            speed_up=speed_up([ratio for sample in counting if (ratio := self.ratio(sample)) is not None]),
            accept_rate=_accept_rate(runs),
            tokens_per_decode=middle(lambda run: run.tokens_per_decode),
            target_ms=middle(lambda run: run.target_ms),
            draft_ms=middle(lambda run: run.draft_ms),
            hidden=middle(lambda run: run.hidden),
            waste=middle(lambda run: run.waste),
            first_token_s=middle(lambda run: run.first_token_s),
            same_text=None if differences is None else not differences,
            difference=differences[0] if differences else None,
        )

    def _plain_run(self, i_round: int) -> Run | None:
        found = (s.run for s in self.samples if s.contestant is self._plain and s.i_round == i_round)
        return next(found, None)

    def _differences(self, samples: Sequence[Sample]) -> list[Difference] | None:
        """Where its texts part from plain decoding's; None if there is nothing to compare."""
        found, compared = [], False
        for sample in samples:
            plain = self._plain_run(sample.i_round)
            if plain is None or not plain.text or sample.contestant is self._plain:
                continue
            compared = True
            place = first_difference(sample.run.text, plain.text)
            if place is not None:
                found.append(Difference(sample.prompt.category, place))
        return found if compared else None


def _accept_rate(runs: Sequence[Run]) -> float | None:
    n_verified = sum(run.n_verified or 0 for run in runs)
    return sum(run.n_accepted or 0 for run in runs) / n_verified if n_verified else None

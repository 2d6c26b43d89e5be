"""Means of what is measured again and again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duo.speculation.constants import DEFAULT


@dataclass
class Mean:
    """A running mean that forgets: the first values have equal weight, later ones at least `weight`."""

    weight: float = 0.05
    value: float = 0.0
    n: int = 0  # values, or as many as the first one counts for

    def add(self, value: float) -> None:
        """Add one value."""
        self.n += 1
        self.value += max(self.weight, 1 / self.n) * (value - self.value)


class Time(Mean):
    """A mean of times in seconds, and its relative spread.

    A time that is far too long is not used: something has interrupted the decode. Several of them in succession, or one
    that is far too short, are the new mean: the machine has changed, or was disturbed when the old one was measured.
    """

    FIRST = 2  # measurements of which the smaller counts: disturbances only make a decode slower

    def __init__(self, value: float = 0.0, spread: float = DEFAULT.spread) -> None:
        """Starts with a `value` of an earlier run, if it is not 0."""
        super().__init__(value=value, n=1 if value else 0)
        self.spread = spread  # standard deviation of one measurement, relative to the mean
        self.is_kept = value > 0  # from an earlier run, and not measured in this one
        self.is_inferred = False  # never measured: see inferred()
        self._outliers: list[float] = []  # the last times, if they were far too long
        self.begin()

    def begin(self) -> None:
        """A text begins."""
        self.before = self.value  # as known at its beginning; 0: not comparable
        self.here = Mean(weight=0.0)  # in this text

    @property
    def is_fresh(self) -> bool:
        """Whether it was measured in this run."""
        return self.n > 0 and not self.is_kept

    def estimate(self, doubt: float) -> float:
        """The mean, plus `doubt` times its standard deviation."""
        return self.value * (1 + doubt * self.spread * math.sqrt(max(self.weight / 2, 1 / max(1, self.n))))

    def inferred(self, factor: float) -> "Time":
        """The same under other circumstances, `factor` times as long: as if it were from an earlier run."""
        made = Time(self.value * factor, self.spread)
        made.is_inferred = True
        return made

    def add(self, value: float) -> None:
        """Add one measurement."""
        slower = DEFAULT.max_slower
        if self.n and value > slower * self.value and len(self._outliers) + 1 < DEFAULT.few:
            self._outliers.append(value)
            return
        if self.n and not self.value / slower <= value <= slower * self.value:
            self.n, self.value, self.here = 0, 0.0, Mean(weight=0.0)
            value = min(value, *self._outliers, math.inf)
        self._outliers.clear()
        self.here.add(value)
        if self.n == 1 and not self.is_kept:
            self.n, self.value = self.FIRST, min(self.value, value)
        else:
            if self.n:
                variance, weight = self.spread**2, max(self.weight, 1 / (self.n + 2))
                self.spread = math.sqrt(variance + weight * ((value / self.value - 1) ** 2 - variance))
            super().add(value)
        self.is_kept = self.is_inferred = False


def between(value: Any, least: float, most: float) -> float:
    """`value`, if it is a number from `least` to `most`. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    if not least <= value <= most:
        raise ValueError("out of range")
    return float(value)


def duration(value: Any) -> float:
    """`value`, if it can be the time of a decode in seconds; beyond, ratios would overflow."""
    return between(value, 1e-7, 1e5)


TimesState = dict[str, list[float]]  # by number: [seconds, relative spread]


def times_state(times: Mapping[int, Time]) -> TimesState:
    """Times that were measured by number, as JSON types."""
    return {str(n): [time.value, time.spread] for n, time in sorted(times.items()) if not time.is_inferred}


def restored_times(state: TimesState, least: int, most: int) -> dict[int, Time]:
    """Times of times_state(), for numbers from `least` to `most`. Raises TypeError or ValueError if it is damaged."""
    return {
        int(between(int(n), least, most)): Time(duration(value), between(spread, 0, 1))
        for n, (value, spread) in state.items()
    }

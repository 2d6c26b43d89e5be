"""Schedules: how the two models share the machine, and the choice among them during a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from duo.spec.budget import Budget
from duo.spec.constants import PolicyConfig


class Schedule(str, Enum):
    """How target and draft share the machine."""

    ASYNC = "async"  # concurrently, each with its own threads
    SYNC = "sync"  # sequentially, each with all threads
    OFF = "off"  # the target alone, with all threads


ALL = tuple(Schedule)


class Outlook(NamedTuple):
    """A forecast of a schedule's rate in tokens/s."""

    rate: float
    low: float  # if all that is uncertain is one standard deviation worse
    high: float  # or better


Outlooks = Mapping[Schedule, Outlook]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of schedule after `n_tokens` of the text."""

    n_tokens: int
    schedule: Schedule
    reason: str


class Chooser:
    """Follows the schedule with the best forecast. Probes, and whatever drafting loses, are paid from its budget."""

    def __init__(self, allowed: Sequence[Schedule], config: PolicyConfig, first: Schedule = Schedule.OFF) -> None:
        """Each text starts with the schedule `first` or, if that is not allowed, the last of the allowed ones."""
        self.allowed = tuple(allowed)
        self._config = config
        self._first = first if first in self.allowed else self.allowed[-1]
        self.budget = Budget(config)
        self._start()

    def _start(self) -> None:
        self.now = self._first
        self.changes: list[Change] = []
        self.n_tokens = 0
        self._n_steps = 0  # since the last change
        self._n_room: int | None = None
        self._first_review = self._config.first_review  # steps after a change
        self._invested_s = 0.0  # prefill that should pay later

    def begin(self, allowed: Sequence[Schedule], n_room: int | None, *, is_first: bool) -> None:
        """Start a text. `n_room`: maximum tokens of the text; None: no limit.

        `is_first`: nothing is known from earlier texts. Then T(1) is measured a few times before the first review,
        otherwise once: it tells whether what is known still holds.
        """
        self.budget.begin()
        self.allowed = tuple(allowed)
        self._start()
        self._n_room = n_room
        self._first_review = self._config.first_review if is_first else 1

    def step(self, n_tokens: int, seconds: float, alone_s: float, *, drafted: bool = True) -> bool:
        """A step added `n_tokens` in `seconds`. Returns whether review() is due.

        `alone_s` is T(1), 0 while unknown. `drafted`: what it gains or loses is due to the draft.
        """
        self.n_tokens += n_tokens
        self._n_steps += 1
        compares = drafted and self.now is not Schedule.OFF and Schedule.OFF in self.allowed and alone_s
        self.budget.step(seconds, n_tokens * alone_s - seconds if compares else 0.0, alone_s)
        return self._n_steps == self._first_review or self._n_steps % self._config.review_steps == 0

    @property
    def is_settled(self) -> bool:
        """Whether the schedule has not changed for a while, so that measured rates are typical."""
        return self._n_steps >= 2 * self._config.review_steps

    def review(self, outlooks: Outlooks, entry_s: float) -> None:
        """Change to the schedule that the outlooks favour, if that pays.

        `entry_s`: seconds of prefill before the draft can start.
        """
        entry_s = entry_s if self.now is Schedule.OFF else 0.0
        best = max(self.allowed, key=lambda schedule: (outlooks[schedule].rate, schedule is self.now))
        if best is not self.now and self._pays(best, outlooks, entry_s):
            self._invested_s += entry_s
            rates = f"{outlooks[best].rate:.1f} instead of {outlooks[self.now].rate:.1f} tokens/s forecast"
            self._change(best, rates)
        elif self._is_overdrawn(outlooks):
            self._change(Schedule.OFF, "drafting has used up its credit")

    def may_gain(self, outlooks: Outlooks) -> bool:
        """Whether drafting may be faster than the target alone."""
        return any(outlooks[schedule].high > self._least(outlooks[Schedule.OFF].high) for schedule in self.allowed)

    def give_up(self) -> None:
        """The draft has ended: only schedule off remains."""
        self.allowed = (Schedule.OFF,)
        if self.now is not Schedule.OFF:
            self._change(Schedule.OFF, "the draft has ended")

    def _pays(self, schedule: Schedule, outlooks: Outlooks, entry_s: float) -> bool:
        """Whether a change saves more than it costs. What drafting may lose is limited by the credit."""
        here, there = outlooks[self.now], outlooks[schedule]
        # Drafting is given up only beyond doubt, and without credit it is begun only beyond doubt.
        begins = self.now is Schedule.OFF and self.budget.credit_s < 0
        least = here.high if schedule is Schedule.OFF else self._least(here.rate)
        if (there.low if begins else there.rate) <= least:
            return False
        saved_s = self._horizon() * (1 / here.rate - 1 / there.rate)
        return saved_s > entry_s

    def _least(self, rate: float) -> float:
        """The least rate that is better than `rate`."""
        return rate * (1 + self._config.least_gain)

    def _horizon(self) -> int:
        """Tokens within which a change must pay."""
        horizon = max(self._config.horizon, self.n_tokens)
        return horizon if self._n_room is None else min(horizon, max(0, self._n_room - self.n_tokens))

    def _is_overdrawn(self, outlooks: Outlooks) -> bool:
        if self.now is Schedule.OFF or Schedule.OFF not in self.allowed or self.budget.credit_s + self._invested_s >= 0:
            return False
        return outlooks[self.now].low < outlooks[Schedule.OFF].rate

    def _change(self, schedule: Schedule, reason: str) -> None:
        self.now = schedule
        self._n_steps, self._first_review = 0, self._config.first_review
        self.changes.append(Change(self.n_tokens, schedule, reason))

"""Schedules: how the two models share the machine, and the choice among them during a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Schedule(str, Enum):
    """How target and draft share the machine."""

    ASYNC = "async"  # concurrently, each with its own threads
    SYNC = "sync"  # sequentially, each with all threads
    OFF = "off"  # the target alone, with all threads


ALL = tuple(Schedule)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of schedule after `n_tokens` of the text."""

    n_tokens: int
    schedule: Schedule
    reason: str


class Chooser:
    """Follows the schedule with the best forecast, as long as a change pays for itself.

    A schedule that is not followed is not measured, so it is tried again from time to time. Such trials, and probes of
    an idle draft, are limited by a budget: a fixed share of the time.
    """

    HORIZON = 128  # minimum number of tokens over which a change must pay for itself; later, the length of the text
    MARGIN = 1.03  # factor by which a forecast must be better, because forecasts are noisy
    FIRST_MARGIN = 1.1  # the same before any candidate of this text was scored
    CAUTION = 3  # factor by which the gain must exceed the cost of starting to draft, because forecasts err
    BUDGET_SHARE = 0.015  # share of the time for trials and probes
    TRIAL_TOKENS = 12
    STALE_STEPS = 128  # steps until a schedule is tried again; doubled after each trial
    _FIRST_REVIEWS = (3, 6, 12)  # steps after a change at which the choice is reviewed,
    REVIEW_STEPS = 16  # and the interval of later reviews

    def __init__(self, allowed: Sequence[Schedule]) -> None:
        """Starts with the first of sync, async and off that is allowed: sync measures most about both models."""
        self.allowed = tuple(allowed)
        self.now = next(s for s in (Schedule.SYNC, Schedule.ASYNC, Schedule.OFF) if s in self.allowed)
        self.changes: list[Change] = []
        self.budget_s = 0.0
        self.n_tokens = 0
        self.n_steps = 0  # since the last change
        self._on_trial = False
        self._n_room: int | None = None
        self._step = 0
        self._left_at: dict[Schedule, int] = {}
        self._patience = dict.fromkeys(Schedule, self.STALE_STEPS)

    def begin(self, rates: Mapping[Schedule, float], entry_s: float, n_room: int | None) -> None:
        """Start with the schedule that `rates` (tokens/s, from earlier generations) favour.

        `entry_s`: seconds of prefill before the draft can start. `n_room`: maximum tokens of the text; None: no limit.
        """
        self._n_room = n_room
        if rates:
            self.budget_s = self.BUDGET_SHARE * self.HORIZON / max(rates.values())
            self.now = Schedule.OFF if Schedule.OFF in self.allowed else max(self.allowed, key=rates.__getitem__)
            best, gain_s = self._best(rates)
            if rates[best] > self.FIRST_MARGIN * rates[self.now] and gain_s > self.CAUTION * entry_s:
                self.now = best

    def step(self, n_tokens: int, seconds: float) -> bool:
        """A step added `n_tokens` in `seconds`. Returns whether review() is due."""
        self.n_tokens += n_tokens
        self.budget_s += self.BUDGET_SHARE * seconds
        self._step += 1
        self.n_steps += 1
        return self.n_steps in self._FIRST_REVIEWS or self.n_steps % self.REVIEW_STEPS == 0

    def review(self, rates: Mapping[Schedule, float], entry_s: float, *, scored: bool = True) -> None:
        """Change to the schedule that `rates` (tokens/s) favour, or try one that has not been measured for long.

        `entry_s`: seconds of prefill before the draft can start. `scored`: whether candidates of this text were scored.
        """
        best, gain_s = self._best(rates)
        margin = 1.0 if self._on_trial else self.MARGIN if scored else self.FIRST_MARGIN
        self._on_trial = False
        entry_s = entry_s if self.now is Schedule.OFF else 0.0
        if rates[best] > margin * rates[self.now] and gain_s > self.CAUTION * entry_s:
            self._change(best, f"{rates[best]:.1f} instead of {rates[self.now]:.1f} tokens/s forecast")
        else:
            self._try(rates, entry_s)

    def give_up(self) -> None:
        """The draft has ended: only schedule off remains."""
        self.allowed = (Schedule.OFF,)
        if self.now is not Schedule.OFF:
            self._change(Schedule.OFF, "the draft has ended")

    def _best(self, rates: Mapping[Schedule, float]) -> tuple[Schedule, float]:
        """The schedule with the best forecast, and the seconds that it saves within the horizon."""
        best = max(self.allowed, key=lambda schedule: (rates[schedule], schedule is self.now))
        horizon = max(self.HORIZON, self.n_tokens)
        if self._n_room is not None:
            horizon = min(horizon, max(0, self._n_room - self.n_tokens))
        return best, horizon * (1 / rates[self.now] - 1 / rates[best])

    def _try(self, rates: Mapping[Schedule, float], entry_s: float) -> None:
        stale = [s for s in self.allowed if self._step - self._left_at.get(s, 0) >= self._patience[s]]
        others = [schedule for schedule in stale if schedule is not self.now]
        if not others:
            return
        other = max(others, key=rates.__getitem__)
        loss_s = entry_s + self.TRIAL_TOKENS * max(0.0, 1 / rates[other] - 1 / rates[self.now])
        if loss_s <= self.budget_s:
            self.budget_s -= loss_s
            self._patience[other] *= 2
            self._change(other, "a trial")
            self._on_trial = True

    def _change(self, schedule: Schedule, reason: str) -> None:
        self._left_at[self.now] = self._step
        self.now = schedule
        self.n_steps = 0
        self.changes.append(Change(self.n_tokens, schedule, reason))

"""Schedules: how the two models share the machine, and the choice between them while a text is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Schedule(str, Enum):
    """How target and draft share the machine."""

    ASYNC = "async"  # both at the same time, each with its own threads
    SYNC = "sync"  # they take turns, each with all the threads
    OFF = "off"  # the target alone, with all the threads


ALL = tuple(Schedule)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of schedule, after the text had `n_tokens`, and why."""

    n_tokens: int
    schedule: Schedule
    reason: str


class Chooser:
    """Follows the schedule with the best forecast, as long as a change pays for itself.

    What is not followed is not measured, so it is tried again now and then. Such trials, and probes of a draft that
    is off, are paid from a budget: a fixed share of the time.
    """

    HORIZON = 128  # tokens in which a change has to pay for itself; more when the text is longer than that already
    MARGIN = 1.03  # by which a forecast has to be better: forecasts are that noisy
    FIRST_MARGIN = 1.1  # the same before a text has told anything: acceptance is no more than hoped for
    CAUTION = 3  # what drafting costs before it begins has to be gained so many times: forecasts err
    BUDGET_SHARE = 0.015  # of the time may be lost to finding out
    TRIAL_TOKENS = 12
    STALE_STEPS = 128  # until a schedule is tried again, the first time; then twice as long
    _FIRST_REVIEWS = (3, 6, 12)  # steps after a change, because much is learned in them
    REVIEW_STEPS = 16

    def __init__(self, allowed: Sequence[Schedule]) -> None:
        """Begins with the first of sync, async and off that is allowed: sync tells most about both models."""
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
        """Start where an earlier run's `rates` say; drafting costs `entry_s` seconds before it begins.

        The text has room for `n_room` tokens; None for any number.
        """
        self._n_room = n_room
        if rates:
            self.budget_s = self.BUDGET_SHARE * self.HORIZON / max(rates.values())
            self.now = Schedule.OFF if Schedule.OFF in self.allowed else max(self.allowed, key=rates.__getitem__)
            best, gain_s = self._best(rates)
            if rates[best] > self.FIRST_MARGIN * rates[self.now] and gain_s > self.CAUTION * entry_s:
                self.now = best

    def step(self, n_tokens: int, seconds: float) -> bool:
        """A step has written `n_tokens` in `seconds`. True if the choice is to be reviewed now."""
        self.n_tokens += n_tokens
        self.budget_s += self.BUDGET_SHARE * seconds
        self._step += 1
        self.n_steps += 1
        return self.n_steps in self._FIRST_REVIEWS or self.n_steps % self.REVIEW_STEPS == 0

    def review(self, rates: Mapping[Schedule, float], entry_s: float, *, told: bool = True) -> None:
        """Change to what `rates` (tokens/s) forecast to be best, or try what has not been tried for long.

        `entry_s` is what it costs to take up drafting from here, in seconds. `told`: whether this text has told how
        often the draft is right.
        """
        best, gain_s = self._best(rates)
        margin = 1.0 if self._on_trial else self.MARGIN if told else self.FIRST_MARGIN
        self._on_trial = False
        entry_s = entry_s if self.now is Schedule.OFF else 0.0
        if rates[best] > margin * rates[self.now] and gain_s > self.CAUTION * entry_s:
            self._change(best, f"{rates[best]:.1f} instead of {rates[self.now]:.1f} tokens/s forecast")
        else:
            self._try(rates, entry_s)

    def give_up(self) -> None:
        """The draft is gone: only the target is left."""
        self.allowed = (Schedule.OFF,)
        if self.now is not Schedule.OFF:
            self._change(Schedule.OFF, "the draft has ended")

    def _best(self, rates: Mapping[Schedule, float]) -> tuple[Schedule, float]:
        """The schedule with the best forecast, and the seconds that it gains over the present one."""
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

"""Modes: who drafts, and how the two models share the machine; the choice among them during a text, and its budget."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from duo.config import DraftConfig
from duo.speculation.constants import DEFAULT
from duo.speculation.forecast import Forecast
from duo.speculation.target_costs import BatchTimes
from duo.speculation.types import Origin, Plan, StepCost


class Schedule(str, Enum):
    """How target and draft share the machine."""

    ASYNC = "async"  # concurrently, each with its own threads
    SYNC = "sync"  # sequentially, each with all threads
    OFF = "off"  # the target alone, with all threads


ASYNC, SYNC, OFF = ALL = tuple(Schedule)


def schedules_of(drafting: DraftConfig) -> tuple[Schedule, ...]:
    """The schedules to choose from."""
    return ALL if drafting.schedule == "auto" else (Schedule(drafting.schedule),)


def fastest(rates: Mapping[Schedule, float]) -> Schedule:
    """The schedule with the highest rate; the target alone if that is not clearly slower."""
    best = max(rates, key=rates.__getitem__)
    return best if rates[best] >= (1 + DEFAULT.least_gain) * rates[OFF] else OFF


class Mode(NamedTuple):
    """Who drafts, and in which schedule."""

    draft: str  # its name; empty: none
    schedule: Schedule


ALONE = Mode("", OFF)  # the target without a draft
ALONE_PLAN = Plan()  # one decode without candidates


class RateEstimate(NamedTuple):
    """A forecast of a mode's rate in tokens/s."""

    rate: float
    low: float  # if all that is uncertain is one standard deviation worse
    high: float  # or better


RateEstimates = Mapping[Mode, RateEstimate]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of schedule after `tokens` of the text."""

    tokens: int
    schedule: Schedule
    reason: str


class Budget:
    """What exploration, and speculation that does not pay, may cost.

    A credit in tokens' time of the target alone, `alone_s` seconds each (0 while unknown). A first text begins with
    more of it than a later one. It grows by a share of the time and of what was gained, and shrinks by what was spent
    and lost, compared with the target alone or, for the lookup, with doing without it.
    """

    def __init__(self, first: float, later: float) -> None:
        """`first`, `later`: with how much a first and a later text begin."""
        self._first, self._later = first, later
        self.alone_s = 0.0
        self.begin(None, is_first=True)

    def begin(self, n_room: float | None, *, is_first: bool = False) -> None:
        """A text begins, of about `n_room` tokens (None: no limit). `is_first`: nothing is known from others."""
        self.is_first = is_first
        most = math.inf if n_room is None else DEFAULT.share * n_room
        self._credit = min(self._first if is_first else self._later, most)
        self._extra = min(self._first, most) - self._credit  # if what is known turns out to be wrong
        self._gained = self._elapsed = 0.0

    def begin_again(self) -> None:
        """What was known from earlier texts is wrong: this one counts as the first."""
        self._credit, self._extra = self._credit + self._extra, 0.0

    @property
    def credit_s(self) -> float:
        """Seconds that may be spent on exploration."""
        return (self._credit + self._gained) * self.alone_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the text began."""
        return self._elapsed * self.alone_s

    def spend(self, seconds: float) -> None:
        """Exploration took this long."""
        self._credit -= seconds / self.alone_s if self.alone_s else 0.0

    def step(self, seconds: float, gained_s: float, alone_s: float) -> None:
        """A step took `seconds`, `gained_s` less than without what the budget is for."""
        self.alone_s = alone_s
        if alone_s:
            self._elapsed += seconds / alone_s
            share = DEFAULT.time_share if self._elapsed < DEFAULT.horizon else DEFAULT.late_share
            self._credit += share * seconds / alone_s
            self._gained += gained_s / alone_s


class Chooser:
    """Follows the mode with the best forecast, and tries others where that pays; a budget pays for losses."""

    def __init__(self) -> None:
        """No draft can be used yet."""
        self.budget = Budget(DEFAULT.first, DEFAULT.later)
        self.begin((ALONE,), ALONE, None, is_first=True, n_likely=DEFAULT.horizon)

    def begin(
        self, allowed: Sequence[Mode], first: Mode, n_room: int | None, *, is_first: bool, n_likely: float
    ) -> None:
        """Start a text in mode `first`, one of those that are `allowed`. For the others see Budget.

        `n_likely`: tokens that it is likely to get.
        """
        self._n_likely = n_likely
        self.budget.begin(n_likely if n_room is None else min(n_room, n_likely), is_first=is_first)
        self.allowed = tuple(allowed)
        self.now = self._first = first
        self.changes: list[Change] = []
        self.n_tokens = 0
        self._n_steps = 0  # since the last change
        self._next_review = DEFAULT.few  # at this number of steps
        self._n_room = n_room
        self._invested_s = 0.0  # prefill that should pay later
        self._tried = {self.now}  # in this text

    def allow(self, allowed: Sequence[Mode], first: Mode, new: Collection[str], reason: str) -> None:
        """Drafts have come (`new`) or gone. The present mode stays if it is `allowed`, else the next one is `first`."""
        come = first.draft in new
        self.allowed = tuple(allowed)
        if self.now not in allowed or (come and first.schedule is ASYNC):
            self._first = first
            self._change(first, reason)

    def step(self, n_tokens: int, seconds: float, alone_s: float, gained_s: float | None = None) -> bool:
        """A step added `n_tokens`; `alone_s` is T(1), or 0. Whether review() is due.

        `gained_s`: due to the draft, compared with the target alone; None: the draft had no part in it.
        """
        self.n_tokens += n_tokens
        self._n_steps += 1
        compares = gained_s is not None and self.now is not ALONE and ALONE in self.allowed and alone_s
        self.budget.step(seconds, gained_s or 0.0 if compares else 0.0, alone_s)
        is_short = compares and self._lacks_credit and self._n_steps % DEFAULT.few == 2
        if self._n_steps < self._next_review and not is_short:
            return False
        self._next_review = min(2 * self._n_steps, self._n_steps + DEFAULT.some)
        return True

    @property
    def _lacks_credit(self) -> bool:
        return self.budget.credit_s + self._invested_s < 0

    @property
    def is_settled(self) -> bool:
        """Whether the mode has not changed for a while, so that measured rates are typical."""
        return self._n_steps >= 2 * DEFAULT.some

    def review(self, estimates: RateEstimates, entry_s: Mapping[str, float], untried: Collection[Mode] = ()) -> None:
        """Change to the mode that the estimates favour, or to one that is worth a trial.

        `entry_s`: by draft, seconds of prefill before it can start. `untried`: modes of which little was ever measured.
        """
        if self.now is self._first and self.now.schedule is ASYNC and self.n_tokens < DEFAULT.some:
            return  # a draft with hardware of its own costs nothing while it is compared with the text
        known = [mode for mode in self.allowed if mode in estimates]
        if self.now not in estimates:
            return
        best = max(known, key=lambda mode: (estimates[mode].rate, mode == ALONE))
        here = estimates[self.now]
        likely = here.low if self.now in untried else here.rate
        may_end = self.now != ALONE and ALONE in self.allowed
        costs = {mode: entry_s.get(mode.draft, 0.0) * (mode.draft != self.now.draft) for mode in known}
        if best != self.now and self._pays(best, estimates, costs[best], untried):
            self._invested_s += 0.0 if best in untried else costs[best]
            self._change(best, f"{estimates[best].rate:.1f} instead of {here.rate:.1f} tokens/s forecast")
        elif may_end and self._lacks_credit and likely < estimates[ALONE].rate * (1 + DEFAULT.least_gain):
            self._change(ALONE, "drafting has used up its credit")
        elif best == self.now and (trial := self._worth_trying(estimates, costs, untried)):
            low, high = estimates[trial][1:]
            self._change(trial, f"a trial: {low:.1f} to {high:.1f} instead of {here.rate:.1f} tokens/s forecast")

    def prospects_of(self, draft: str, estimates: RateEstimates) -> tuple[bool, float]:
        """Whether this draft may be faster than the target alone, and what knowing that may gain in this text.

        The latter in tokens' time of the target alone.
        """
        alone = estimates[ALONE]
        found = [each for mode, each in estimates.items() if mode.draft == draft]
        may_gain = any(each.high > alone.high * (1 + DEFAULT.least_gain) for each in found)
        return may_gain, self._room() * max((self._gain(each, alone) for each in found), default=0.0)

    def _pays(self, mode: Mode, estimates: RateEstimates, entry_s: float, untried: Collection[Mode]) -> bool:
        """Whether a change saves more than it costs. What drafting may lose is limited by the credit."""
        here, there = estimates[self.now].rate, estimates[mode].rate
        if mode == ALONE and there == here:
            return True  # nothing is drafted, so that nothing is learned either
        if mode in untried and entry_s > self.budget.credit_s:
            return False
        least = here if mode == ALONE else here * (1 + DEFAULT.least_gain)
        if there <= least:
            return False
        if entry_s:  # paid at once, though the draft may only have been lucky: half-way to the low ends
            here, there = ((one.rate + one.low) / 2 for one in (estimates[self.now], estimates[mode]))
        return self._room() * (1 / here - 1 / there) > entry_s

    def _worth_trying(
        self, estimates: RateEstimates, entry_s: Mapping[Mode, float], untried: Collection[Mode]
    ) -> Mode | None:
        """The mode whose trial is worth most more than it costs, in tokens' time; None if none is."""
        here, found = estimates[self.now], list[tuple[float, Mode]]()
        for mode in set(untried).intersection(entry_s) - self._tried:
            there = estimates[mode]
            least = there.low if mode.schedule is ASYNC else there.rate
            cost = DEFAULT.trial_steps * max(0.0, here.rate / least - 1) + entry_s[mode] * here.rate
            value = self._gain(there, here) * (self._room() + DEFAULT.few * DEFAULT.horizon) - cost
            if value > 0 and cost <= self.budget.credit_s * here.rate:
                found.append((value, mode))
        return max(found)[1] if found else None

    def _gain(self, there: RateEstimate, here: RateEstimate) -> float:
        """The expected gain of knowing whether `there` is faster, per token (Jones, Schonlau and Welch 1998)."""
        # Costs are uncertain for both modes alike, so that ratios are compared.
        sd = max(abs(there.high / here.high - there.low / here.low), 1e-9) / 2
        z = (there.rate / here.rate - 1 - DEFAULT.least_gain) / sd
        chance = math.erfc(-z / math.sqrt(2)) / 2
        return sd * (z * chance + math.exp(-z * z / 2) / math.sqrt(2 * math.pi))

    def _room(self) -> float:
        """Tokens within which a change must pay. A text ends at any token with the same probability."""
        horizon = max(min(DEFAULT.horizon, self._n_likely), self.n_tokens)
        return horizon if self._n_room is None else min(horizon, max(0, self._n_room - self.n_tokens))

    def _change(self, mode: Mode, reason: str) -> None:
        self.now = mode
        self._tried.add(mode)
        self._n_steps, self._next_review = 0, DEFAULT.few
        self.changes.append(Change(self.n_tokens, mode.schedule, reason))


def gained_s(mode: Mode, forecast: Forecast, n_tokens: int, cost: StepCost, alone: BatchTimes) -> float | None:
    """What the draft has gained in a step, compared with the target alone; None: it had no part in it."""
    if mode.schedule is SYNC and not forecast.n_verify:  # sync is the target alone then
        return None
    if cost.source is Origin.DRAFT:
        return n_tokens * alone.seconds(1) - cost.total_s
    # The lookup's candidates were verified: after the draft was asked, or beside the draft.
    least_s = cost.decode_s if mode.schedule is SYNC else alone.seconds(cost.n_candidates + 1)
    return min(0.0, least_s - cost.total_s)


class TargetAlone:
    """The controller of a target for which nothing proposes."""

    mode = ALONE

    def begin(self, *_: object) -> None:
        """See Controller."""

    def use(self, *_: object) -> None:
        """See Controller."""

    def use_cores(self, n_cores: int) -> None:
        """See Controller."""

    def plan(self, *_: object) -> Plan:
        """Decode one token."""
        return ALONE_PLAN

    def learn(self, *_: object) -> None:
        """See Controller."""

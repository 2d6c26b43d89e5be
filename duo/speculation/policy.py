"""Policy: how many candidates to verify, whether to wait for one more, how far to draft ahead, and in which schedule.

All inputs are measured while running: T(n), the target's time for a batch of n tokens; t_d, the draft's time per token;
a(c), the probability that a candidate of confidence c is accepted (costs.py). They determine λ, the best
sustainable rate (forecast.py), and λ determines the number of candidates (decision.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duo.config import MAX_BRANCHES, DraftConfig
from duo.speculation.acceptance import Lookahead, bin_of
from duo.speculation.constants import DEFAULT
from duo.speculation.decision import best_batch, best_in_order, best_ready
from duo.speculation.learner import REJECTION, Learner
from duo.speculation.policy_statistics import AloneTimes, ByCondition, PolicyStatistics
from duo.speculation.schedule import ASYNC, OFF, SYNC, schedules_of
from duo.speculation.types import Origin, Proposal, StepCost, common_prefix

__all__ = ["REJECTION", "Decision", "Policy", "StepCost", "policy_for"]

_MUCH_LIKELIER = 9  # odds


def _weigh(drafted: list[float], found: list[float], n_agreed: int) -> None:
    """Adjust the chances of two sources whose first `n_agreed` tokens are the same: about wrong only if both are.

    Where they differ, what the lookup has `found` is dropped unless it is much likelier (benchmarks/NOTES.md).
    """
    for i in range(min(n_agreed, len(found))):
        drafted[i] = found[i] = 1 - (1 - drafted[i]) * (1 - found[i])
    if n_agreed < min(len(drafted), len(found)):
        ours, theirs = found[n_agreed], drafted[n_agreed]
        if ours * (1 - theirs) < _MUCH_LIKELIER * theirs * (1 - ours):
            del found[n_agreed:]


@dataclass(frozen=True, slots=True)
class Decision:
    """Verify `n_verify` candidates now or, if `wait_s` is not None, wait that long for another and decide again."""

    n_verify: int
    wait_s: float | None = None
    origin: Origin = Origin.DRAFT


class Policy(Learner):
    """Decides for one draft, generation after generation, and learns from each. Only the target's thread calls it."""

    @property
    def _value_of_time(self) -> float:
        """λ for decisions, in tokens/s: forecasts know nothing of the lookup, which may make the text faster."""
        tokens, seconds = self._recent
        return max(self.rate, tokens / seconds) if self._n_found and seconds else self.rate

    def decide(self, n_room: int, drafted: Proposal, *others: Proposal) -> Decision:
        """What to do with what the draft and the `others` propose, in a step that may add at most `n_room` tokens."""
        n_max, rate = min(self.n_max, n_room - 1), self._value_of_time  # the target adds a token of its own
        if not self.rate or n_max <= 0 or (self.schedule is SYNC and self._needs_alone(rate)):
            return Decision(0)
        if self.schedule is OFF and (n := self._n_arbitrary(n_max)):
            return Decision(
                n, origin=next((other.origin for other in others if len(other.candidates) >= n), Origin.ANY)
            )
        chances, found = list[float](), []
        if drafted.candidates:
            adjusted = [chance for _, chance in self.calibration.chances(self.calibration.mean)]  # to this text
            chances = [adjusted[bin_of(candidate.confidence, len(adjusted))] for candidate in drafted.candidates]
        for other in others:
            theirs, n_same = self._chances(other, min(self.n_most, n_room - 1)), 0
            # With rejection sampling, the choice between the sources must not depend on what was drawn.
            if theirs and not self._in_order:
                n_same = common_prefix(
                    *([candidate.token for candidate in each.candidates] for each in (drafted, other))
                )
                _weigh(chances, theirs, n_same)
            if theirs:
                found.append((other.origin, theirs, n_same))
        n, value = self._best_drafted(chances, n_max, rate, drafted.next_s)
        best = Decision(n) if n <= len(chances) else Decision(0, drafted.next_s + self.costs.draft_s)
        asks = n > 0 and not chances and self.schedule is SYNC and not self._in_order
        curve = self.costs.curve(self.n_most + 1, self._lookup_doubt) if found else ()
        for origin, theirs, n_same in found:
            n_found, found_value = best_ready(theirs, curve, rate)
            if asks:
                # The value of asking the draft for a token first, which predicts the first of these about as often as
                # that is right. Otherwise there is what is drafted.
                agreed = [1 - (1 - theirs[0]) * (1 - self.calibration.mean), *theirs[1:]]
                asked = best_ready(agreed, curve, rate)[1] - rate * drafted.next_s
                value = max(value, theirs[0] * asked + (1 - theirs[0]) * value)
            if n_found > n_same and found_value > value:
                best, value = Decision(n_found, origin=origin), found_value
        return best

    def _best_drafted(self, chances: Sequence[float], n_max: int, rate: float, next_s: float) -> tuple[int, float]:
        """How many of the draft's candidates to verify, and the value of that. One more than there are: wait for it."""
        curve, forecast = self.costs.curve(self.n_max + 1)[: n_max + 1], self._forecast
        if self.schedule is OFF:
            return 0, 1 - rate * curve[0]
        draft_s, mean, least = self.costs.draft_s, self.calibration.mean, int(self._must_draft)
        if self._in_order:
            n = best_in_order(chances, curve, rate, mean, next_s, draft_s)
            if not chances and next_s < math.inf:
                n = max(n, least)
            # A comparison with other candidates must not depend on those that were drawn, nor on how many there are: so
            # it is made as if none had been drafted yet.
            return n, best_batch((), curve, rate, mean, draft_s or math.inf, draft_s, forecast.worth_of)[1]
        n, value = best_batch(chances, curve, rate, mean, next_s, draft_s, forecast.worth_of)
        if self.schedule is SYNC:
            n = len(chances)
            if n < n_max and next_s < math.inf and forecast.goes_on(n, math.prod(chances), rate):
                return n + 1, value
            n = max(best_ready(chances[:n_max], curve, rate)[0], min(n, least))
        return n, value

    @property
    def _lookup_doubt(self) -> float:
        """Standard deviations by which chances and times must be better for the lookup: without credit, one."""
        return 1.0 if self._lookup_budget.credit_s < 0 else 0.0

    def _chances(self, found: Proposal, n_most: int) -> list[float]:
        """The chances of candidates that cost no time, as many as may be verified."""
        n, doubt = min(n_most, self.costs.n_affordable(self._lookup_budget.credit_s) - 1), self._lookup_doubt
        return [
            max(0.0, chance - doubt * math.sqrt(chance * (1 - chance) / seen)) for chance, seen in found.chances[:n]
        ]

    def lookahead(self) -> Lookahead:
        """How far the draft may run ahead, given what is known now."""
        if self.schedule is not ASYNC:
            return Lookahead()
        least = min(DEFAULT.least_survival, self.rate * self.costs.draft_s)
        return Lookahead(
            self.n_ahead, least, self.calibration.probabilities(), self._n_branches, self.calibration.ranks
        )

    def statistics(self) -> PolicyStatistics:
        """What was learned and decided."""
        both = alone, concurrent = self.alone, self.concurrent
        max_rate, found = self.max_rate(), self.forecasts() if self._was_scored else {}
        knows_branches = concurrent.draft_s and any(costs.branch_times for costs in both)
        times = [sorted(costs.target_times.items()) for costs in both]
        curves = [[1000 * seconds for seconds in costs.curve(self.n_max + 1)] for costs in both]
        return PolicyStatistics(
            schedule=self.schedule,
            schedules=tuple(self.schedules),
            changes=list(self.chooser.changes),
            rate=self.rate,
            forecast_tokens_per_s={schedule: min(rate, max_rate) for schedule, rate in self.rates().items()},
            predicted_tokens_per_s=max((found[each].rate for each in self.chooser.allowed if found), default=None),
            n_branches=self.lookahead().n_branches,
            acceptance=self.calibration.mean,
            scored=self.calibration.n_scored,
            ranks=self.calibration.ranks,
            max_gain=self.max_gain(),
            alone_ms=AloneTimes(
                self.is_steady * 1000 * alone.alone_here_s() or None, 1000 * alone.target(1).before or None
            ),
            target_ms=ByCondition(*({n: 1000 * time.value for n, time in each if time.is_fresh} for each in times)),
            draft_ms=ByCondition(1000 * alone.draft_s or None, 1000 * concurrent.draft_s or None),
            draft_ms_by_sequences=[
                1000 * concurrent.draft_time(0.0, n) for n in range(1, MAX_BRANCHES + 2) if knows_branches
            ],
            latency_ms=1000 * self.latency_s or None,
            curve_ms=ByCondition(*(curve if curve[0] else None for curve in curves)),
            measured=ByCondition(*([n for n, time in each if time.n and n <= self.n_max + 1] for each in times)),
            pair_ms=1000 * alone.pair_time() if alone.pair_times else None,
        )


def policy_for(
    drafting: DraftConfig, draft_threads: Sequence[int] = (1,), kind: type[Policy] = Policy, **options: Any
) -> Policy:
    """A policy with the limits that a user has set for `drafting`; the `options`: see PairModel."""
    limits, n_most = (drafting.n_max, drafting.n_ahead), drafting.n_most
    schedules, branches = schedules_of(drafting), drafting.branches
    return kind(*limits, schedules, draft_threads, branches=branches, n_most=n_most, **options)

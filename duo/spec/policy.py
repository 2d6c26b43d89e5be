"""Policy: how many candidates to verify, whether to wait for one more, how far to draft ahead, and in which schedule.

All inputs are measured while running: T(n), the target's time for a batch of n tokens; t_d, the draft's time per token;
a(c), the probability that a candidate of confidence c is accepted (duo/spec/costs.py). They determine λ, the best
sustainable rate (duo/spec/forecast.py), and λ determines the number of candidates (duo/spec/decision.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from duo.spec.calibration import Calibration, Lookahead
from duo.spec.decision import best_batch, best_in_order, best_ready
from duo.spec.learner import REJECTION, Learner, StepCost
from duo.spec.lookup import HOPELESS
from duo.spec.policy_statistics import PolicyStatistics, policy_statistics
from duo.spec.schedule import Schedule
from duo.spec.types import Origin, Proposal, common_prefix

__all__ = ["REJECTION", "Decision", "Policy", "StepCost"]

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
        """What to do with the candidates `drafted` by the source that this policy is for, or with those of `others`.

        The step may add at most `n_room` tokens.
        """
        n_max = min(self.n_max, n_room - 1)  # the target adds a token of its own
        if not self.rate or n_max <= 0:
            return Decision(0)
        if self.schedule is Schedule.SYNC and self._exploration.needs_alone(self._value_of_time):
            return Decision(0)
        if self.schedule is Schedule.OFF and (n := self._exploration.n_candidates(n_max)):
            return Decision(n, origin=next((other.origin for other in others if len(other.guesses) >= n), Origin.ANY))
        adjusted = [chance for _, chance in self.calibration.chances(self.calibration.mean)]  # to this text
        chances = [adjusted[bisect_right(Calibration.EDGES, guess.confidence)] for guess in drafted.guesses]
        found = [(other, self._chances(other, n_max)) for other in others if other.guesses]
        # With rejection sampling, the choice between the sources must not depend on what was drawn.
        same = [0 if self._in_order else common_prefix(drafted.tokens, other.tokens) for other, _ in found]
        for (_, theirs), n_same in zip(found, same, strict=True):
            if not self._in_order:
                _weigh(chances, theirs, n_same)
        n, value = self._best_drafted(chances, n_max, drafted.next_s)
        best = Decision(n) if n <= len(chances) else Decision(0, drafted.next_s + self.costs.draft_s)
        for (other, theirs), n_same in zip(found, same, strict=True):
            if not theirs:
                continue
            curve = self.costs.curve(self.n_max + 1, self._lookup_doubt)
            n_found, found_value = best_ready(theirs, curve, self._value_of_time)
            if n > 0 and not chances and self.schedule is Schedule.SYNC and not self._in_order:
                value = max(value, self._value_of_asking(theirs, curve, drafted.next_s, value))
            if n_found > n_same and found_value > value:
                best, value = Decision(n_found, origin=other.origin), found_value
        return best

    def _best_drafted(self, chances: Sequence[float], n_max: int, next_s: float) -> tuple[int, float]:
        """How many of the draft's candidates to verify, and the value of that."""
        curve, rate = self.costs.curve(self.n_max + 1), self._value_of_time
        if self.schedule is Schedule.OFF:
            return 0, 1 - rate * curve[0]
        expected = self._forecast if rate == self.rate else replace(self._forecast, rate=rate)
        mean = self.calibration.mean
        if not self._in_order:
            n, value = best_batch(chances, mean, n_max, next_s, curve, self.costs.draft_s, expected)
            if self.schedule is Schedule.SYNC:
                n = self._best_in_turn(chances, n_max, next_s, curve, rate)
            return n, value
        n = best_in_order(chances, mean, n_max, next_s, curve, self.costs.draft_s, expected)
        if self._must_draft and not chances and next_s < math.inf:
            n = max(n, 1)
        # A comparison with other candidates must not depend on those that were drawn, nor on how many there are: so it
        # is made as if none had been drafted yet.
        draft_s = self.costs.draft_s
        return n, best_batch((), mean, n_max, draft_s or math.inf, curve, draft_s, expected)[1]

    def _best_in_turn(
        self, chances: Sequence[float], n_max: int, next_s: float, curve: Sequence[float], rate: float
    ) -> int:
        """How many candidates to verify in schedule sync; one more than there are: draft it."""
        n = len(chances)
        if n < n_max and next_s < math.inf and self._forecast.goes_on(n, math.prod(chances), rate):
            return n + 1
        k = best_ready(chances[:n_max], curve, rate)[0]
        return max(k, min(n, 1)) if self._must_draft else k

    @property
    def _lookup_doubt(self) -> float:
        """Standard deviations by which chances and times must be better for the lookup: without credit, one."""
        return 1.0 if self._lookup_budget.credit_s < 0 else 0.0

    def _chances(self, found: Proposal, n_max: int) -> list[float]:
        """The chances of candidates that cost no time, as many as may be verified: none after a hopeless one."""
        n, doubt = min(n_max, self.costs.n_affordable(self._lookup_budget.credit_s) - 1), self._lookup_doubt
        if not doubt:
            return [chance for chance, _ in found.chances[:n]]
        chances, survival = list[float](), 1.0
        for chance, seen in found.chances[:n]:
            if survival <= HOPELESS:
                break
            chances.append(max(0.0, chance - doubt * math.sqrt(chance * (1 - chance) / seen)))
            survival *= chances[-1]
        return chances

    def _value_of_asking(self, found: Sequence[float], curve: Sequence[float], next_s: float, drafted: float) -> float:
        """The value of asking the draft for a token before those that the lookup has `found` are verified.

        It predicts the first of them about as often as that is right. Otherwise there is what is `drafted`: its value.
        """
        rate, mean = self._value_of_time, self.calibration.mean
        agreed = [1 - (1 - found[0]) * (1 - mean), *found[1:]]
        return found[0] * (best_ready(agreed, curve, rate)[1] - rate * next_s) + (1 - found[0]) * drafted

    def lookahead(self) -> Lookahead:
        """How far the draft may run ahead, given what is known now."""
        if self.schedule is not Schedule.ASYNC:
            return Lookahead()
        least = min(self.config.least_survival, self.rate * self.costs.draft_s)
        return Lookahead(
            self.n_ahead, least, self.calibration.probabilities(), self._n_branches, self.calibration.ranks
        )

    def probe_size(self) -> int:
        """How many tokens of the text an idle draft should decode to see which it would have drafted; usually 0.

        That is all that it has not decoded, or the last ones.
        """
        return 0 if self.schedule is Schedule.ASYNC else self._exploration.probe_size()

    def statistics(self) -> PolicyStatistics:
        """What was learned and decided."""
        max_rate, found = self.max_rate(), self.forecasts() if self.scores else {}
        return policy_statistics(
            self,
            self.schedule,
            self._schedules,
            self.chooser.changes,
            self.rate,
            {schedule: min(rate, max_rate) for schedule, rate in self.rates().items()},
            max((found[schedule].rate for schedule in self.chooser.allowed if schedule in found), default=None),
            self.lookahead().n_branches,
        )

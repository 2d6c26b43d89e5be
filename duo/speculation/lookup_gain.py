"""What the lookup gains beside a draft, learned while running, and what its candidates may cost."""

import math

from duo.speculation.constants import DEFAULT
from duo.speculation.modes import Budget
from duo.speculation.target_costs import BatchTimes, TargetCosts
from duo.speculation.types import Origin, Proposal, StepCost

_MUCH_LIKELIER = 9  # odds


class LookupGain:
    """The lookup has a budget of its own, of which it pays for candidates that turn out to be wrong."""

    def __init__(self, target: TargetCosts) -> None:
        """`target`: keeps what is known of the lookup from text to text."""
        self._target = target
        self._budget = Budget(DEFAULT.later, DEFAULT.later)
        self.begin()

    def begin(self) -> None:
        """A text begins."""
        self._budget.begin(None)
        self._recent = (0.0, 0.0)  # tokens and seconds of this text, the latest steps counting most
        self._n_found = 0  # tokens of this text that the lookup found,
        self._n_found_since = 0  # since a step of another proposer

    def learn(self, n_tokens: int, cost: StepCost, rate: float, alone_s: float) -> int:
        """A step added `n_tokens`; without the lookup it would have been at this `rate`. Returns the tokens found."""
        tokens, seconds = self._recent
        kept = DEFAULT.memory**n_tokens
        self._recent = (kept * tokens + n_tokens, kept * seconds + cost.total_s)
        n_found, gained_s = (n_tokens - 1 if cost.source is Origin.LOOKUP else 0), 0.0
        if cost.source is Origin.DRAFT:
            self._target.n_found.add(self._n_found_since)
            self._n_found_since = 0
        elif cost.source is Origin.LOOKUP:
            self._n_found += n_found
            self._n_found_since += n_found
            gained_s = n_tokens / rate - cost.total_s if rate else 0.0
        self._budget.step(cost.total_s, gained_s, alone_s)
        return n_found

    def value_of_time(self, rate: float) -> float:
        """λ for decisions, in tokens/s: forecasts know nothing of the lookup, which may make the text faster."""
        tokens, seconds = self._recent
        return max(rate, tokens / seconds) if self._n_found and seconds else rate

    @property
    def doubt(self) -> float:
        """Standard deviations by which chances and times must be better for the lookup: without credit, one."""
        return 1.0 if self._budget.credit_s < 0 else 0.0

    def chances(self, found: Proposal, n_most: int, costs: BatchTimes) -> list[float]:
        """The chances of candidates that cost no time, as many as may be verified."""
        n, doubt = min(n_most, costs.n_affordable(self._budget.credit_s) - 1), self.doubt
        return [
            max(0.0, chance - doubt * math.sqrt(chance * (1 - chance) / seen)) for chance, seen in found.chances[:n]
        ]


def weigh(drafted: list[float], found: list[float], n_agreed: int) -> None:
    """Adjust the chances of two proposers whose first `n_agreed` tokens are the same: about wrong only if both are.

    Where they differ, what the lookup has `found` is dropped unless it is much likelier (benchmarks/NOTES.md).
    """
    for i in range(min(n_agreed, len(found))):
        drafted[i] = found[i] = 1 - (1 - drafted[i]) * (1 - found[i])
    if n_agreed < min(len(drafted), len(found)):
        ours, theirs = found[n_agreed], drafted[n_agreed]
        if ours * (1 - theirs) < _MUCH_LIKELIER * theirs * (1 - ours):
            del found[n_agreed:]

"""Forecast: the rate that a pair can reach in each schedule, from its costs and its acceptance rate.

Each candidate is assumed to be accepted with the same probability α if all before it are. A generation then consists of
independent cycles that end with a rejection, and by the renewal-reward theorem the long-run rate is

    E[tokens in a cycle] / E[time of a cycle].

In all functions `target_s[k]` is the target's time for a batch of k+1 tokens and `draft_s` the draft's for one token,
in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

SURE = 0.99  # upper limit of α: no draft is perfect
_GRID = 2  # states per token of lead


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best long-run rate, and how to reach it."""

    rate: float  # tokens per second
    n_verify: int = 0  # candidates to verify when many are ready
    n_wait: int = 0  # candidates to wait for when none is
    worth: tuple[float, ...] = ()  # value in tokens of a lead of i/2 - `behind`, compared with a fresh start
    behind: float = 1.0

    def worth_of(self, lead: float) -> float:
        """The value, in tokens, of a draft that is `lead` tokens ahead; fractions count. 0 in sequential schedules."""
        if not self.worth:
            return 0.0
        return self.worth[min(max(round(_GRID * (lead + self.behind)), 0), len(self.worth) - 1)]


def alone(target_s: Sequence[float]) -> Forecast:
    """Schedule off: the target without a draft."""
    return Forecast(1 / target_s[0])


def taking_turns(target_s: Sequence[float], draft_s: float, acceptance: float) -> Forecast:
    """Schedule sync: the draft makes k tokens, then the target verifies them (Leviathan et al. 2023, measured costs).

    After all k were accepted, the draft also has to decode the last of them.
    """
    best = alone(target_s)
    survival = expected = 1.0
    for k in range(1, len(target_s)):
        survival *= acceptance
        expected += survival
        rate = expected / ((k + survival) * draft_s + target_s[k])
        if rate > best.rate:
            best = Forecast(rate, k, k)
    return best


def limit(target_s: Sequence[float], draft_s: float, acceptance: float) -> float:
    """An upper bound for all schedules at these costs: min(1/t_d, E(k)/T(k+1)) at the best k, or the target alone."""
    expected = accumulate(acceptance**k for k in range(len(target_s)))
    rates = [tokens / seconds for tokens, seconds in zip(expected, target_s, strict=True)]
    return max(rates[0], min(1 / draft_s, max(rates)))


def overlapped(
    target_s: Sequence[float], draft_s: float, acceptance: float, n_ahead: int, latency_s: float = 0.0
) -> Forecast:
    """Schedule async: both concurrently, the draft at most `n_ahead` tokens ahead.

    `latency_s` is the round trip to the draft: from a rejection to the arrival of the next candidate, without the time
    to draft it.

    The state is the draft's lead: the tokens drafted beyond the accepted ones, in halves. It is negative while the
    draft is still working on a token that the target has already produced: down to -1, and further by what is drafted
    in `latency_s`. In each state k candidates are verified, after waiting for those that are not ready, while the draft
    continues. With probability α^(k+1) the lead is kept: the k candidates must be accepted and the target's own next
    token must equal the draft's (α^k if the draft has not reached that position). Otherwise a new cycle begins without
    a lead. Solved by policy iteration (Howard 1960) for a semi-Markov decision process with average reward.
    """
    acceptance = min(acceptance, SURE)
    late = min(round(_GRID * latency_s / draft_s) / _GRID, n_ahead)
    behind = 1 + late
    lead = np.arange(round(_GRID * (n_ahead + behind)) + 1) / _GRID - behind
    k = np.arange(min(len(target_s), n_ahead + 1))
    expected = np.array(list(accumulate(acceptance**k)))
    waited = np.where(k > 0, np.maximum(0, k - lead[:, None]), 0)
    seconds = waited * draft_s + np.asarray(target_s)[k]
    # The lead after the step lies between two states: `below` and the next.
    next_lead = np.clip(np.minimum(lead[:, None] + seconds / draft_s, n_ahead) - (k + 1), -behind, n_ahead)
    survival = np.minimum(np.where(next_lead < 0, acceptance**k, acceptance ** (k + 1)), SURE)
    below = np.minimum((_GRID * (next_lead + behind)).astype(int), len(lead) - 2)
    share = _GRID * (next_lead + behind) - below
    fresh, states = _GRID, np.arange(len(lead))
    chosen = np.zeros(len(lead), int)
    for _ in range(20):
        kept = np.zeros((len(lead), len(lead)))
        kept[states, below[states, chosen]] = survival[states, chosen] * (1 - share[states, chosen])
        kept[states, below[states, chosen] + 1] += survival[states, chosen] * share[states, chosen]
        gains = np.stack([expected[chosen], seconds[states, chosen]], axis=1)
        tokens, times = np.linalg.solve(np.eye(len(lead)) - kept, gains).T
        rate = tokens[fresh] / times[fresh]
        worth = tokens - rate * times
        value = expected - rate * seconds + survival * ((1 - share) * worth[below] + share * worth[below + 1])
        better = value.argmax(axis=1)
        gain = value[states, better] - value[states, chosen]
        if (gain <= 1e-9).all():
            break
        chosen = np.where(gain > 1e-9, better, chosen)
    return Forecast(float(rate), int(chosen[-1]), int(chosen[fresh]), tuple(worth.tolist()), behind)

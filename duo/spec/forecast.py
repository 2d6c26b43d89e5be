"""Forecast: the rate that a pair can reach, from its costs and its acceptance.

Each candidate is taken to be accepted with the same probability α if all before it are. Then a generation falls into
cycles, each of which ends with a rejection, and by the renewal-reward theorem the long-run rate is

    E[tokens in a cycle] / E[time of a cycle].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

SURE = 0.99  # no draft is better than that for ever
_GRID = 2  # states per token of lead


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best long-run rate, and what is done to reach it.

    `worth[i]` is what a lead of i/2 - `behind` tokens is worth, in tokens, beyond a fresh start; empty where no lead
    outlives a step. `n_verify` candidates are verified when there are many, and so many are waited for when there is
    none.
    """

    rate: float  # tokens per second
    n_verify: int = 0
    n_wait: int = 0
    worth: tuple[float, ...] = ()
    behind: float = 1.0

    def worth_of(self, lead: float) -> float:
        """What it is worth that the draft has guessed `lead` tokens, parts of one included."""
        if not self.worth:
            return 0.0
        return self.worth[min(max(round(_GRID * (lead + self.behind)), 0), len(self.worth) - 1)]


def alone(target_s: Sequence[float]) -> Forecast:
    """The target without a draft; `target_s[k]` is its time for a batch of k+1 tokens, in seconds."""
    return Forecast(1 / target_s[0])


def taking_turns(target_s: Sequence[float], draft_s: float, acceptance: float) -> Forecast:
    """The draft makes k tokens, then the target verifies them (Leviathan et al. 2023, with measured costs).

    After all k were accepted, the draft has to read the last of them too.
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
    """A rate that no schedule exceeds: min(1/t_d, E(k)/T(k+1)) at its best k, or the target alone."""
    expected = accumulate(acceptance**k for k in range(len(target_s)))
    rates = [tokens / seconds for tokens, seconds in zip(expected, target_s, strict=True)]
    return max(rates[0], min(1 / draft_s, max(rates)))


def overlapped(
    target_s: Sequence[float], draft_s: float, acceptance: float, n_ahead: int, latency_s: float = 0.0
) -> Forecast:
    """Both at the same time, the draft at most `n_ahead` tokens ahead.

    `latency_s` is the time from a rejection until the draft goes on, and from its next guess until that is here.

    The state is the draft's lead: the tokens it has guessed beyond the accepted ones, in halves; down to -1, where
    it is still busy with a token that the target has written meanwhile, or below by what it makes in `latency_s`.
    In each state k candidates are verified, after waiting for those that are not ready. Meanwhile the draft goes on,
    and the lead is kept with probability α^(k+1): the k must be accepted and the target's own next token must be the
    draft's, unless the draft has not come to that. Else a new cycle begins, without a lead. Solved by policy iteration
    (Howard 1960), in which the rate is that of the policy so far.
    """
    acceptance = min(acceptance, SURE)
    late = min(round(_GRID * latency_s / draft_s) / _GRID, n_ahead)
    behind = 1 + late
    lead = np.arange(round(_GRID * (n_ahead + behind)) + 1) / _GRID - behind
    k = np.arange(min(len(target_s), n_ahead + 1))
    expected = np.array(list(accumulate(acceptance**k)))
    waited = np.where(k > 0, np.maximum(0, k - lead[:, None]), 0)
    seconds = waited * draft_s + np.asarray(target_s)[k]
    # Where the lead lies after the step, between two states.
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

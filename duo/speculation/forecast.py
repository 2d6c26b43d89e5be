"""Forecast: the rate that a pair can reach in each schedule, from its costs and its acceptance rate.

Each candidate is assumed to be accepted with the same probability α if all before it are. A generation then consists of
independent cycles that end with a rejection, and by the renewal-reward theorem the long-run rate is

    E[tokens in a cycle] / E[time of a cycle].

In all functions `target_s[k]` is the target's time for a batch of k+1 tokens and `draft_s` the draft's for one token,
in seconds.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from duo.speculation.acceptance import MAX_DEEP, likely
from duo.speculation.types import Floats

SURE = 0.99  # upper limit of α: no draft is perfect
_GRID = 2  # states per token of head start
_SURVIVALS = 41  # states of survival, from 0 to 1
_SURVIVAL = np.linspace(0, 1, _SURVIVALS)

Integers = npt.NDArray[np.int64]
Chances = Sequence[tuple[float, float]]  # each (share of the candidates, probability that one is accepted)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best long-run rate, and how to reach it."""

    rate: float  # tokens per second
    n_verify: int = 0  # candidates to verify when many are ready
    n_wait: int = 0  # candidates to wait for when none is
    worth: tuple[float, ...] = ()  # value in tokens of a head start of i/2 - `behind`, compared with none
    behind: float = 1.0
    n_branches: int = 0  # outcomes to prepare
    batches: tuple[int, ...] = ()  # candidates to verify at each head start
    # In turns: for 0, 1, … candidates, the least survival with which one more is drafted; never beyond them.
    stop: tuple[float, ...] = ()

    def goes_on(self, n: int, survival: float, rate: float) -> bool:
        """In turns: whether to draft one more after `n` candidates with this `survival`, at λ = `rate`."""
        return n < len(self.stop) and survival * self.rate >= self.stop[n] * rate

    def worth_of(self, head_start: float) -> float:
        """The value, in tokens, of a draft that is so many ahead; fractions count. 0 in sequential schedules."""
        if not self.worth:
            return 0.0
        return self.worth[min(max(round(_GRID * (head_start + self.behind)), 0), len(self.worth) - 1)]


def taking_turns(
    target_s: Sequence[float], draft_s: float, chances: Sequence[Chances], pair_s: float, latency_s: float = 0.0
) -> Forecast:
    """Schedule sync: the draft makes some tokens, then the target verifies them.

    `chances` by confidence, by which the draft stops, of the first candidate, the second, …; the last are those of all
    further ones. `pair_s`: the draft's time for two tokens in one decode, as which it reads the last candidate and the
    bonus token after all candidates were accepted. `latency_s`: the round trip to the draft.

    The best constant number of candidates (Leviathan et al. 2023, with measured costs) or, if it is better, the best
    rule of stopping, by policy iteration (Howard 1960). The state is the number of candidates k and their survival s,
    on a grid. To verify takes T(k+1), and with probability s the longer decode after it; to go on takes t_d.
    """
    means = [sum(share * chance for share, chance in each) for each in chances]
    deepest = len(chances) - 1
    best, extra_s = Forecast(1 / target_s[0]), pair_s - draft_s
    survival = expected = 1.0
    for k in range(1, len(target_s)):
        survival *= means[min(k - 1, deepest)]
        expected += survival
        rate = expected / (latency_s + k * draft_s + survival * extra_s + target_s[k])
        if rate > best.rate:
            best = Forecast(rate, k, k, stop=k * (0.0,))
    if all(len(each) == 1 for each in chances):
        return best
    onward, rate = [_onward(each) for each in chances], best.rate
    while True:
        tokens, seconds = np.zeros(_SURVIVALS), target_s[-1] + _SURVIVAL * extra_s
        stop = list[float]()
        for k in range(len(target_s) - 2, -1, -1):
            i = min(k, deepest)
            more, more_s = means[i] * _SURVIVAL + onward[i] @ tokens, draft_s + onward[i] @ seconds
            halt_s = target_s[k] + (_SURVIVAL * extra_s if k else -latency_s)
            goes_on = more - rate * (more_s - halt_s) > 0
            stop.append(float(_SURVIVAL[goes_on.argmax()]) if goes_on[-1] else math.inf)
            tokens, seconds = np.where(goes_on, more, 0.0), np.where(goes_on, more_s, halt_s)
        found = float((1 + tokens[-1]) / (seconds[-1] + latency_s))
        if found <= rate * (1 + 1e-6):
            return best
        rate = found
        n = next((k for k, least in enumerate(reversed(stop)) if least == math.inf), len(stop))
        best = Forecast(rate, n, n, stop=tuple(reversed(stop)))


def in_blocks(
    target_s: Sequence[float], block_s: Sequence[float], chances: Sequence[Chances], latency_s: float = 0.0
) -> Forecast:
    """Schedule sync with a draft that makes 1, 2, … candidates at once in `block_s`: the best number is `n_wait`.

    Of a block, a constant number is verified. What confidence adds shows in how accurate the forecast was.
    """
    means = [sum(share * chance for share, chance in each) for each in chances]
    most = min(len(block_s), len(target_s) - 1)
    survivals = accumulate((means[min(k, len(means) - 1)] for k in range(most)), operator.mul)
    expected = list(accumulate(survivals, initial=1.0))  # tokens, if 0, 1, … are verified
    lengths = [(n, k) for n in range(1, most + 1) for k in range(1, n + 1)]
    rates = [expected[k] / (latency_s + block_s[n - 1] + target_s[k]) for n, k in lengths]
    best = max(rates, default=0.0)
    if best <= 1 / target_s[0]:
        return Forecast(1 / target_s[0])
    n, k = lengths[rates.index(best)]
    return Forecast(best, k, n, stop=(0.0,))


def _onward(chances: Chances) -> Floats:
    """For each survival of the grid, the weights of the survivals after one more candidate."""
    found = np.zeros((_SURVIVALS, _SURVIVALS))
    rows = np.arange(_SURVIVALS)
    for share, chance in chances:
        below = np.minimum((rows * chance).astype(int), _SURVIVALS - 2)
        above = rows * chance - below
        np.add.at(found, (rows, below), share * (1 - above))
        np.add.at(found, (rows, below + 1), share * above)
    return found


def limit(target_s: Sequence[float], draft_s: float, acceptance: float) -> float:
    """An upper bound for all schedules at these costs: min(1/t_d, E(k)/T(k+1)) at the best k, or the target alone."""
    expected = accumulate(acceptance**k for k in range(len(target_s)))
    rates = [tokens / seconds for tokens, seconds in zip(expected, target_s, strict=True)]
    return max(rates[0], min(1 / draft_s, max(rates)))


def overlapped(
    target_s: Sequence[float],
    sequences_s: Sequence[float],
    acceptance: float,
    n_ahead: int,
    latency_s: float = 0.0,
    ranks: Sequence[float] = (),
    near: Sequence[int] = (),
    link_s: float = 0.0,
) -> Forecast:
    """Schedule async: both concurrently, the draft at most `n_ahead` tokens ahead.

    `sequences_s`: its times for one token in each of 1, 2, … sequences. Each beyond the first is a branch, which
    prepares an outcome (with `ranks`: see likely()) while the target verifies. `latency_s` is the round trip to the
    draft: from a rejection to the arrival of the next candidate, without the time to draft it. For a draft that cannot
    abort a decode, what remains of that is added, on average half. `link_s`: of this, what messages take.

    The state is the draft's head start: the tokens drafted beyond the accepted ones, in halves. It is negative while
    the draft is still working on a token that the target has already produced: down to -1, and further by what is
    drafted in `latency_s`. In each state k candidates are verified, after waiting for those that are not ready, while
    the draft continues. With probability α^(k+1) the head start is kept: the k candidates must be accepted and the
    target's own next token must equal the draft's (α^k if the draft has not reached that position). Otherwise a new
    cycle begins without one. Solved by policy iteration (Howard 1960) for a semi-Markov decision process with average
    reward. `near`: the batches of a similar forecast, from which fewer iterations are needed.

    With branches, a decode of the draft during a verification takes longer, and the cycle goes on after a rejection
    that was prepared for. The head start is then what was decoded of that branch, which began with the draft's next
    decode: after half of one, or after a whole one if the target waited for the token before it. Over a link, the draft
    learns late of the verification, and what it has decoded arrives late.

    Of a round trip, what the draft could not run ahead by is waited for in each new cycle: if that is slower than the
    target alone, the forecast is that of the latter.
    """
    acceptance, n_max = min(acceptance, SURE), min(len(target_s) - 1, n_ahead)
    draft_s, n_branches = sequences_s[0], len(sequences_s) - 1
    behind = 1 + min(round(_GRID * latency_s / draft_s) / _GRID, n_ahead)
    ahead = np.arange(round(_GRID * (n_ahead + behind)) + 1) / _GRID - behind
    k = np.arange(n_max + 1)
    expected = np.array(list(accumulate(acceptance**k)))
    verify_s = np.asarray(target_s)[k]
    waited = np.where(k > 0, np.maximum(0, k - ahead[:, None]), 0)
    possible = likely((n_max + 1) * [acceptance], ranks) if n_branches else []
    outcomes = [[one for one in possible if one.position <= n][:n_branches] for n in range(n_max + 1)]
    drafted = verify_s / np.array([sequences_s[len(each)] for each in outcomes])  # during the verification

    def between(head_starts: Floats | Integers) -> tuple[Integers, Floats]:
        """The state below each head start, and the share of the next one."""
        place = _GRID * (np.clip(head_starts, -behind, n_ahead) + behind)
        below = np.minimum(place.astype(int), len(ahead) - 2)
        return below, place - below

    then = np.minimum(ahead[:, None] + waited + drafted, n_ahead) - (k + 1)
    survival = np.minimum(np.where(then < 0, acceptance**k, acceptance ** (k + 1)), SURE)
    paths = [(survival, *between(then))]
    if n_branches:
        # How likely the outcome is prepared, if it contradicts one of the k or the draft's next token.
        chances = [sum(one.chance for one in each) for each in outcomes]
        prepared = np.array([chance / (1 - acceptance**n) for n, chance in enumerate(chances, 1)])
        hits = (1 - survival) * np.where(then < 0, np.append(0.0, prepared)[k], prepared[k])
        hits = np.minimum(hits, SURE - survival)  # otherwise a cycle might never end
        began = np.where(waited > 0, 1.0, 0.5)
        late = link_s * drafted / verify_s
        found = np.clip(drafted - late - began, -link_s / draft_s, min(n_ahead, MAX_DEEP))
        paths.append((hits, *between(found)))
    seconds, missed_s = waited * draft_s + verify_s, max(0.0, latency_s - n_ahead * draft_s)
    if missed_s:
        seconds = seconds + missed_s * (1 - sum(chance for chance, *_ in paths))
    chosen = np.array(near if len(near) == len(ahead) and max(near) <= n_max else len(ahead) * [0])
    rate, worth, chosen = _solve(expected, seconds, paths, chosen, fresh=_GRID)
    if missed_s and rate * target_s[0] <= 1:
        return Forecast(1 / target_s[0])
    batches, worth_of = chosen.tolist(), tuple(worth.tolist())
    return Forecast(rate, batches[-1], batches[_GRID], worth_of, behind, n_branches, tuple(batches))


# Arrays `[states, k]`: the probability of a transition, the state below that which follows, the share of the next.
_Path = tuple[Floats, Integers, Floats]


def _solve(
    expected: Floats, seconds: Floats, paths: Sequence[_Path], chosen: Integers, fresh: int
) -> tuple[float, Floats, Integers]:
    """Policy iteration from `chosen`, a k for each state. Returns the rate, and for each state its worth and best k.

    `expected[k]` tokens take `seconds[state, k]`. With what remains of 1 after the probabilities of all `paths`, a new
    cycle begins in state `fresh`.
    """
    states = np.arange(len(seconds))
    for _ in range(20):
        kept = np.zeros((len(seconds), len(seconds)))
        for chance, below, share in paths:
            now, to = chance[states, chosen], below[states, chosen]
            kept[states, to] += now * (1 - share[states, chosen])
            kept[states, to + 1] += now * share[states, chosen]
        gains = np.stack([expected[chosen], seconds[states, chosen]], axis=1)
        tokens, times = np.linalg.solve(np.eye(len(seconds)) - kept, gains).T
        rate = tokens[fresh] / times[fresh]
        worth = tokens - rate * times
        value = expected - rate * seconds
        for chance, below, share in paths:
            value = value + chance * ((1 - share) * worth[below] + share * worth[below + 1])
        better = value.argmax(axis=1)
        gain = value[states, better] - value[states, chosen]
        if (gain <= 1e-9).all():
            break
        chosen = np.where(gain > 1e-9, better, chosen)
    return float(rate), worth, chosen

"""How many candidates to verify in the next target batch, and whether to wait for one more.

A batch of k candidates, of which the first i survive with probability s_i = a(c_1)···a(c_i), is worth

    value(k, wait) = 1 + Σ s_i - λ · (wait + T(k+1)) + s_{k+1} · worth(lead)

tokens: the tokens it adds, minus what the time it takes yields at the rate λ, plus the value of the lead that the draft
keeps if all k candidates and the target's own next token are as drafted. T is the target's time for a batch; λ and
worth() come from duo/spec/forecast.py. Maximising tokens - λ · seconds with λ the long-run rate maximises that rate.
What the draft prepares for a rejection is left out: in replays it made no difference (benchmarks/NOTES.md).

The rules return a number of candidates, two of them with its value. A number larger than `len(chances)` means: wait for
the next one.

    chances   acceptance probability a(c) of each pending candidate
    mean      acceptance probability of those not drafted yet
    n_max     maximum number of candidates in the batch
    next_s    seconds until the next candidate is expected; infinity: never
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from duo.spec.forecast import Forecast

_HOPELESS = 0.02  # survival below which a candidate is not worth waiting for


def best_batch(
    chances: Sequence[float],
    mean: float,
    n_max: int,
    next_s: float,
    target_s: Sequence[float],
    draft_s: float,
    forecast: Forecast,
) -> tuple[int, float]:
    """The number of candidates with the highest value."""
    rate, n_ready = forecast.rate, len(chances)
    is_drafting = bool(draft_s) and next_s < math.inf
    # The draft's lead includes the finished part of the token in progress.
    lead = n_ready + (1 - next_s / draft_s if is_drafting else 0.0)
    survival, expected, wait_s = 1.0, 0.0, 0.0
    best, best_value = 0, -math.inf
    for k in range(n_max + 1):
        expected += survival
        if k > n_ready:
            wait_s = next_s + (k - n_ready - 1) * draft_s
            if wait_s == math.inf:
                break
        seconds = wait_s + target_s[k]
        survival *= chances[k] if k < n_ready else mean
        if survival < _HOPELESS and k > n_ready:
            break
        lead_then = lead - k - 1 + (seconds / draft_s if is_drafting else 0.0)
        value = expected - rate * seconds + survival * forecast.worth_of(lead_then)
        if value > best_value:
            best, best_value = k, value
    return best, best_value


def best_ready(chances: Sequence[float], target_s: Sequence[float], rate: float) -> tuple[int, float]:
    """The number of candidates with the highest value if there will be no more."""
    survival, expected = 1.0, 1.0
    best, best_value = 0, 1.0 - rate * target_s[0]
    for k, chance in enumerate(chances, 1):
        survival *= chance
        expected += survival
        if (value := expected - rate * target_s[k]) > best_value:
            best, best_value = k, value
    return best, best_value


def best_in_order(
    chances: Sequence[float],
    mean: float,
    n_max: int,
    next_s: float,
    target_s: Sequence[float],
    draft_s: float,
    forecast: Forecast,
) -> int:
    """The number of candidates for rejection sampling: each is taken or not without regard to those drafted after it.

    The confidence of a candidate depends on the token drawn before it, so whether one is verified must not depend on
    later confidences or on how many there are (see Rejection in duo/spec/verify.py). Candidates are taken from left to
    right while the value of some longer batch, with `mean` for the rest, exceeds that of stopping. The lead, which
    depends on later draws, has no value here.
    """
    rate = forecast.rate
    k, survival, expected = 0, 1.0, 1.0

    def best_after(chance: float, first_s: float, each_s: float) -> float:
        """The highest value of a batch longer than `k` whose next candidate is accepted with probability `chance`."""
        best, alive, tokens = -math.inf, survival, expected
        for n in range(k + 1, n_max + 1):
            alive *= chance if n == k + 1 else mean
            tokens += alive
            best = max(best, tokens - rate * (first_s + (n - k - 1) * each_s + target_s[n]))
        return best

    for chance in chances[:n_max]:
        if best_after(chance, 0.0, 0.0) <= expected - rate * target_s[k]:
            return k
        survival *= chance
        expected += survival
        k += 1
    waits = next_s < math.inf and best_after(mean, next_s, draft_s) > expected - rate * target_s[k]
    return k + 1 if waits else k

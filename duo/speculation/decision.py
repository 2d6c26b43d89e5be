"""How many candidates to verify in the next target batch, and whether to wait for one more.

A batch of k candidates, of which the first i survive with probability s_i = a(c_1)···a(c_i), is worth

    value(k, wait) = 1 + Σ s_i - λ · (wait + T(k+1)) + s_{k+1} · worth(head start)

tokens: the tokens it adds, minus what the time it takes yields at the rate λ, plus the value of the head start that the
draft keeps if all k candidates and the target's own next token are as drafted, which is worth less if it begins with
candidates that are less likely than usual. T is the target's time for a batch; λ and worth() come from forecast.py.
Maximising tokens - λ · seconds with λ the long-run rate maximises that rate. What the draft prepares for a rejection is
left out: in replays it made no difference (benchmarks/NOTES.md).

Both rules return a number of candidates. One larger than `len(chances)` means: wait for the next one.

    chances   acceptance probability a(c) of each pending candidate
    target_s  T(1), T(2), …: for as many candidates as the batch may have
    mean      acceptance probability of those not drafted yet
    next_s    seconds until the next candidate is expected; infinity: never
    draft_s   seconds between those after it
"""

import math
from collections.abc import Callable, Sequence

from duo.speculation.acceptance import likely
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import SYNC
from duo.speculation.target_costs import BatchTimes
from duo.speculation.types import Outcome, Plan

_HOPELESS = 0.02  # survival below which a candidate is not worth waiting for


def best_batch(
    chances: Sequence[float],
    target_s: Sequence[float],
    rate: float,
    mean: float,
    next_s: float,
    draft_s: float,
    worth_of: Callable[[float], float] = lambda _: 0.0,
) -> tuple[int, float]:
    """The number of candidates with the highest value, and this. `worth_of` a head start: see Forecast."""
    n_ready, is_drafting = len(chances), bool(draft_s) and next_s < math.inf
    # The head start includes the finished part of the token in progress.
    head_start = n_ready + (1 - next_s / draft_s if is_drafting else 0.0)
    known, usual = [0.0], [0.0]  # what the last candidates yield if they are verified in turn, and as many others
    for chance in reversed(chances):
        known.append(chance * (1 + known[-1]))
        usual.append(mean * (1 + usual[-1]))
    survival, expected, wait_s = 1.0, 0.0, 0.0
    best, best_value = 0, -math.inf
    for k, decode_s in enumerate(target_s):
        expected += survival
        if k > n_ready:
            wait_s = next_s + (k - n_ready - 1) * draft_s
            if wait_s == math.inf:
                break
        seconds = wait_s + decode_s
        survival *= chances[k] if k < n_ready else mean
        if survival < _HOPELESS and k > n_ready:
            break
        head_start_then = head_start - k - 1 + (seconds / draft_s if is_drafting else 0.0)
        n_left = max(0, n_ready - k - 1)
        share = min(1.0, known[n_left] / usual[n_left]) if usual[n_left] else 1.0
        value = expected - rate * seconds + survival * share * worth_of(head_start_then)
        if value > best_value:
            best, best_value = k, value
    return best, best_value


def best_ready(chances: Sequence[float], target_s: Sequence[float], rate: float) -> tuple[int, float]:
    """best_batch() where nothing follows the candidates that are ready: cheaper, because every step asks for it."""
    survival, expected = 1.0, 1.0
    best, best_value = 0, 1.0 - rate * target_s[0]
    for k, chance in enumerate(chances, 1):
        survival *= chance
        expected += survival
        if (value := expected - rate * target_s[k]) > best_value:
            best, best_value = k, value
    return best, best_value


def with_alternatives(plan: Plan, draft: DraftEstimates, costs: BatchTimes, rate: float, n_most: int) -> Plan:
    """The plan with at most `n_most` alternatives to the draft's candidates, likeliest first.

    One that comes true adds a token: each is taken while that is worth what its row adds to T(n). Not for a draft that
    computes meanwhile: it has prepared for its rejections, and then they did not pay (benchmarks/NOTES.md).
    """
    candidates, found, n_rows = plan.candidates, list[Outcome](), len(plan.candidates) + 1
    if n_most <= 0 or not candidates or plan.wait_s is not None:
        return plan
    target_s = costs.curve(draft.n_max + 1 + n_most)
    for chance, position, rank in likely(draft.chances(candidates), draft.acceptance.ranks):
        if len(found) == n_most or chance <= rate * (target_s[n_rows] - target_s[n_rows - 1]):
            break
        if rank < len(candidates[position].alternatives):
            found.append(Outcome(position, candidates[position].alternatives[rank]))
            n_rows += 1
    return plan._replace(alternatives=found)


def best_in_order(
    chances: Sequence[float], target_s: Sequence[float], rate: float, mean: float, next_s: float, draft_s: float
) -> int:
    """The number of candidates for rejection sampling: each is taken or not without regard to those drafted after it.

    The confidence of a candidate depends on the token drawn before it, so whether one is verified must not depend on
    later confidences or on how many there are (see Rejection in verify.py). Candidates are taken from left to
    right while the value of some longer batch, with `mean` for the rest, exceeds that of stopping. The head start,
    which depends on later draws, has no value here.
    """
    survival, n_max = 1.0, len(target_s) - 1
    for k in range(n_max):
        here = chances[k : k + 1]
        waits = (0.0, 0.0) if here else (next_s, draft_s)
        # What follows adds tokens only if all before survives: time costs so many more of them.
        if not survival or not best_batch(here, target_s[k:], rate / survival, mean, *waits)[0]:
            return k
        if not here:
            return k + 1
        survival *= here[0]
    return n_max


def best_drafted(
    draft: DraftEstimates, chances: Sequence[float], costs: BatchTimes, n_max: int, rate: float, next_s: float,
    *, in_order: bool, must_draft: bool,
) -> tuple[int, float]:  # fmt: skip
    """How many of the draft's candidates to verify, and the value of that. One more than there are: wait for it."""
    n_max, forecast, draft_s, mean = min(draft.n_max, n_max), draft.forecast, draft.token_s, draft.acceptance.mean
    curve = costs.curve(draft.n_max + 1)[: n_max + 1]
    if draft.block:  # all of them are made at once
        draft_s, n_max = 0.0, min(n_max, max(len(chances), draft.n_block))
    if in_order:
        n = best_in_order(chances, curve, rate, mean, next_s, draft_s)
        if not chances and next_s < math.inf:
            n = max(n, int(must_draft))
        # A comparison with other candidates must not depend on those that were drawn, nor on how many there are: so it
        # is made as if none had been drafted yet.
        first_s = draft.next_s if draft.block else draft_s or math.inf
        return n, best_batch((), curve[: n_max + 1], rate, mean, first_s, draft_s, forecast.worth_of)[1]
    n, value = best_batch(chances, curve, rate, mean, next_s, draft_s, forecast.worth_of)
    if draft.schedule is SYNC:
        n = len(chances)
        # Forecasts know nothing of a lookup, which raises λ: that must not keep the draft from being asked at all.
        least = rate if n else min(rate, forecast.rate)
        if n < n_max and next_s < math.inf and forecast.goes_on(n, math.prod(chances), least):
            return n + 1, value
        n_ready, left = best_ready(chances[:n_max], curve, least)
        if draft.block and forecast.n_verify and n and next_s < math.inf and left < 0:
            return n + 1, value  # what is left of a block is worth less than a new one, which is worth 0 at this rate
        n = max(n_ready, min(n, int(must_draft)))
    return n, value

"""The verdict of a run in plain words: how much faster draft and lookup made it, and what to try if they did not."""

from __future__ import annotations

from collections.abc import Sequence

from duo.cli.terminal.run_statistics import RunStatistics
from duo.engine.statistics import Statistics
from duo.spec import forecast
from duo.spec.constants import DEFAULT, assumed
from duo.spec.policy_statistics import PolicyStatistics
from duo.spec.schedule import Schedule

CLOSE = 0.05  # smaller differences between two rates are noise: the machine's speed varies
_WORTH = 1.1  # times the target alone: a smaller forecast is no reason to try something
_DEAREST = 1.25  # times as long as one by one: more for a batch was measured on a busy machine
_SMALLER = 4  # times as fast as this draft is one that is a quarter of its size
_OFF = Schedule.OFF.value


def verdict(run: RunStatistics) -> str:
    """The speed compared with that of the target alone in this run, and why; there must be a policy."""
    generation, lookup = run.text.generation, run.text.lookup
    assert run.policy is not None
    rate, by_schedule, ms = generation.tokens_per_s, generation.tokens_by_schedule, run.policy.alone_ms.this_run
    is_alone = set(by_schedule) == {_OFF} and (lookup.verified if lookup else 0) <= CLOSE * generation.tokens
    if rate and is_alone and not run.n_others:
        return _why_no_gain(run, run.policy)
    shares = ", ".join(f"{n} {name}" for name, n in by_schedule.items())
    used = f"; tokens: {shares}" if run.has_draft and shares else ""
    if run.n_others:
        return f"unknown: {_disturbed(run)}{used}"
    if not rate or not ms:
        return f"unknown: the target alone was not measured in this run{used}"
    times, alone = rate * ms / 1000, f"{1000 / ms:.1f} tokens/s"
    if times >= 1 + CLOSE:
        return f"{_who(run.text)} made this {times:.2f} times as fast (alone: {alone} by its decodes){used}"
    compared = "about as fast as" if times > 1 - CLOSE else f"{100 * (1 - times):.0f} % slower than"
    why = _why_no_gain(run, run.policy)
    return f"{why}; {compared} the target alone ({alone} by its decodes){used}"


def _disturbed(run: RunStatistics) -> str:
    """What other programs did, and what to do."""
    said, cores = f"other programs used {run.n_others:.1f} cores", run.cores
    if run.n_threads is not None and 0 < cores.fewest < run.n_threads:
        return f"{said}; fewer threads may be faster: -t {cores.fewest}"
    if run.n_threads is None and cores.fewest < cores.all:
        said += f", so duo used {cores.fewest} of {cores.all} at times"
    return f"{said}; try again when the machine is idle"


def _who(text: Statistics) -> str:
    """What made a text faster."""
    sources = (("the draft", text.draft), ("lookup", text.lookup))
    return " and ".join(name for name, found in sources if found and found.accepted) or "duo"


def _why_no_gain(run: RunStatistics, policy: PolicyStatistics) -> str:
    """Why draft and lookup brought nothing, and what to try."""
    text = run.text
    if not policy.has_draft:
        return "lookup did not pay here"
    if text.draft and text.draft.error:
        return "the draft failed"
    rates = dict(policy.forecast_tokens_per_s)
    alone, best = rates.pop(Schedule.OFF, 0.0), max(rates.values(), default=0.0)
    if not alone:
        return "unknown: too little is known about the draft"
    if best >= (1 + CLOSE) * alone:
        return "the draft came too late to pay; a longer text, or the next, may be faster"
    if run.is_draft_larger:
        remedy = "it is larger than the target: are -m and -md exchanged?"
    else:
        remedy = _remedy(policy, was_scored=text.draft is not None, apart=run.apart)
    return f"the draft did not pay here{remedy and f': {remedy}'}"


def _remedy(policy: PolicyStatistics, *, was_scored: bool, apart: bool) -> str:
    """What the draft lacks, and what would help by the forecasts; empty while too little is known for certain."""
    curve, draft_ms = policy.curve_ms.alone, policy.draft_ms.alone or policy.draft_ms.beside
    if not curve or not draft_ms or curve[-1] > _DEAREST * len(curve) * curve[0]:
        return ""
    acceptance, excellent = policy.acceptance, DEFAULT.excellent
    pair = (policy.pair_ms or 0.0) / draft_ms or assumed(DEFAULT.pair, 0.0)
    needs = f"it needs {_share_of(draft_ms / curve[0])} the target's time per token"
    smaller, better = _gain(curve, draft_ms / _SMALLER, pair, acceptance), _gain(curve, draft_ms, pair, excellent)
    if max(smaller, better) >= _WORTH:
        if smaller >= better or not was_scored:
            return f"{needs}; try a smaller one (duo tune)"
        return f"{100 * acceptance:.0f} % of its tokens are right; try one more like the target (duo tune)"
    if _gain(curve, draft_ms / _SMALLER, pair, excellent) >= _WORTH:
        return f"{needs}; try a smaller and better one (duo tune)"
    if _gain(curve, 0.0, pair, acceptance) >= _WORTH:
        remedy = "try a much smaller one" if apart else "it may pay on another device (-devd) or machine (duo back)"
        return f"{needs}; {remedy}"
    n = max(policy.measured.alone, default=1)
    return f"the target needs {curve[n - 1] / curve[0]:.1f} times as long for {n} tokens as for one; omit the draft"


def _gain(curve: Sequence[float], draft_ms: float, pair: float, acceptance: float) -> float:
    """The forecast of the sequential schedule, relative to the target alone.

    `pair`: a draft's time for two tokens in one decode, relative to one.
    """
    return forecast.taking_turns(curve, draft_ms, [(1.0, acceptance)], max(1.0, pair) * draft_ms).rate * curve[0]


def _share_of(share: float) -> str:
    """A share in words where there are simple ones, such as `half`."""
    words = {0.25: "a quarter of", 1 / 3: "a third of", 0.5: "half", 2 / 3: "two thirds of", 0.75: "three quarters of"}
    nearest = min(words, key=lambda value: abs(value - share))
    if abs(nearest - share) <= 0.04:
        return words[nearest]
    return f"{share:.1f} times" if share >= 1 else f"{100 * share:.0f} % of"

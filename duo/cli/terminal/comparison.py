"""What the demo says at its end: duo beside the target alone, and what the policy chose and why."""

from __future__ import annotations

from collections.abc import Sequence

from duo.cli.terminal.report import CLOSE, last_line, why_no_gain
from duo.cli.terminal.run_statistics import RunStatistics
from duo.engine.statistics import Statistics
from duo.engine.stream import Completion
from duo.spec.schedule import Schedule
from duo.spec.types import common_prefix

_NAMES = {
    "lookup": "lookup",
    Schedule.OFF.value: "the target alone",
    Schedule.SYNC.value: "sequential drafting",
    Schedule.ASYNC.value: "concurrent drafting",
}


def render_comparison(run: RunStatistics, tokens: Sequence[int], alone: Completion, *, exact: bool) -> str:
    """Five lines about the text `tokens` and the one that the target generated `alone`, with the same settings.

    Both must have a rate, so at least two tokens, and the run a policy. `exact`: with --exact.
    """
    text, sampling = run.text, run.sampling
    rate, alone_rate = text.tokens_per_s, alone.statistics.tokens_per_s
    assert rate is not None
    assert alone_rate is not None
    times = rate / alone_rate
    compared = "about" if abs(times - 1) < CLOSE else f"{times:.2f} times"
    seed = f"; seed {sampling.seed}" if sampling.temperature else ""
    same = "the same text"
    if list(tokens) != list(alone.tokens):
        why = "--verify rejection" if sampling.mode == "rejection" else "rounding; --exact avoids it"
        same = f"differs from token {common_prefix(tokens, alone.tokens) + 1}" + ("" if exact else f": {why}")
    lines = (
        f"duo           {len(tokens)} tokens, {rate:.1f} tokens/s: {compared} as fast as the target alone{seed}",
        f"target alone  {len(alone.tokens)} tokens, {alone_rate:.1f} tokens/s; {same}",
        f"duo chose     {_chosen(text)}",
        f"because       {_reason(run)}",
    )
    return "\n".join([*lines, last_line(text.generation)])


def _chosen(text: Statistics) -> str:
    found = text.lookup.accepted_by_schedule if text.lookup else {}
    by_schedule = text.generation.tokens_by_schedule
    tokens = {schedule: n - found.get(schedule, 0) for schedule, n in by_schedule.items()}
    tokens["lookup"] = sum(found.values())
    ordered = sorted(((n, _NAMES[name]) for name, n in tokens.items() if n > 0), reverse=True)
    return ", ".join(f"{name} for {n} tokens" for n, name in ordered)


def _reason(run: RunStatistics) -> str:
    """Why, from the latest forecasts."""
    draft, lookup, policy = run.text.draft, run.text.lookup, run.policy
    assert policy is not None
    if lookup and lookup.accepted > (draft.accepted if draft else 0):
        return f"the text repeats itself or the prompt: {lookup.accepted} of {lookup.verified} such tokens were right"
    rates = dict(policy.forecast_tokens_per_s)
    if not draft or draft.error or len(rates) < 2:
        return why_no_gain(run)
    alone, drafted = rates.pop(Schedule.OFF), max(rates.values())
    right = f"{100 * policy.acceptance:.0f} % right"
    return f"forecast {alone:.1f} tokens/s alone, {drafted:.1f} with a draft that is {right}"

"""What the demo says at its end: duo beside the target alone, and what the policy chose and why."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from rich.live import Live as Display

from duo.cli.terminal.console import stderr
from duo.cli.terminal.report import forecast, last_line, why_not_used
from duo.cli.terminal.run_statistics import RunStatistics
from duo.cli.terminal.verdict import CLOSE
from duo.engine.statistics import Statistics
from duo.engine.stream import Completion
from duo.spec.policy import REJECTION
from duo.spec.policy_statistics import PolicyStatistics
from duo.spec.schedule import Schedule
from duo.spec.types import common_prefix

_LOOKUP = "lookup"
_NAMES = {
    _LOOKUP: _LOOKUP,
    Schedule.OFF.value: "the target alone",
    Schedule.SYNC.value: "sequential drafting",
    Schedule.ASYNC.value: "concurrent drafting",
}


def notice(text: str) -> AbstractContextManager[object]:
    """A line on stderr that disappears at the end; nothing if stderr is not a terminal. It takes no time meanwhile."""
    return Display(text, console=stderr(), auto_refresh=False, transient=True)


def render_comparison(run: RunStatistics, tokens: Sequence[int], alone: Completion, *, exact: bool) -> str:
    """Five lines about the text `tokens` and the one that the target generated `alone`, with the same settings.

    Both must have a rate, so at least two tokens, and the run a policy. `exact`: with --exact.
    """
    text, policy, sampling = run.text, run.policy, run.sampling
    rate, alone_rate = text.tokens_per_s, alone.statistics.tokens_per_s
    assert rate is not None
    assert alone_rate is not None
    assert policy is not None
    seed = f"; seed {sampling.seed}" if sampling.temperature else ""
    has_drafted = text.draft is not None and text.draft.drafted
    # The target's own decodes in the first text are another measurement of the target alone.
    measured_ms = policy.alone_ms.this_run if has_drafted or text.lookup else 1000 / rate
    verdict = _verdict(rate / alone_rate, rate * (measured_ms or 1000 / alone_rate) / 1000)
    same = _text(tokens, alone.tokens, sampling.mode, exact=exact)
    lines = (
        f"duo           {len(tokens)} tokens, {rate:.1f} tokens/s: {verdict}{seed}",
        f"target alone  {len(alone.tokens)} tokens, {alone_rate:.1f} tokens/s; {same}",
        f"duo chose     {_chosen(text)}",
        f"because       {_reason(policy, text)}",
    )
    return "\n".join([*lines, last_line(text.generation)])


def _verdict(times: float, again: float) -> str:
    """How duo's rate compares with that of the target alone, from two measurements of the latter."""
    if abs(times - 1) < CLOSE:
        return "about as fast as the target alone"
    if abs(again - times) > abs(times - 1) / 2:
        return "within the noise of this machine"
    return f"{times:.2f} times as fast as the target alone"


def _text(tokens: Sequence[int], alone: Sequence[int], mode: str, *, exact: bool) -> str:
    """Whether the two texts are the same; if not, where they part and why."""
    if list(tokens) == list(alone):
        return "the same text"
    differs = f"differs from token {common_prefix(tokens, alone) + 1}"
    if mode == REJECTION:
        return f"{differs}: --verify rejection"
    return differs if exact else f"{differs}: rounding; --exact avoids it"


def _chosen(text: Statistics) -> str:
    found = text.lookup.accepted_by_schedule if text.lookup else {}
    by_schedule = text.generation.tokens_by_schedule
    tokens = {schedule: n - found.get(schedule, 0) for schedule, n in by_schedule.items()} | {
        _LOOKUP: sum(found.values())
    }
    (first, n), *others = sorted(((name, n) for name, n in tokens.items() if n > 0), key=lambda item: -item[1])
    if not others:
        return f"{_NAMES[first]} throughout"
    return ", ".join([f"{_NAMES[first]} for {n} tokens", *(f"{_NAMES[name]} for {m}" for name, m in others)])


def _reason(policy: PolicyStatistics, text: Statistics) -> str:
    """Why, from the latest forecasts."""
    draft, lookup, by_schedule = text.draft, text.lookup, text.generation.tokens_by_schedule
    rates = dict(policy.forecast_tokens_per_s)
    if draft and draft.error:
        return f"the draft failed: {draft.error}"
    if lookup and lookup.accepted > (draft.accepted if draft else 0):
        return f"the text repeats itself or the prompt: {lookup.accepted} of {lookup.verified} such tokens were right"
    if not draft or not rates:
        return why_not_used(policy, has_scores=draft is not None)
    alone, drafted = rates.pop(Schedule.OFF), max(rates.values())
    is_alone = max(by_schedule, key=by_schedule.__getitem__) == Schedule.OFF.value
    gain = (drafted / alone if is_alone else alone / drafted) - 1  # of what was used less
    late = "known too late: " if gain >= CLOSE else "little to gain: " if gain > 0 else ""
    return late + forecast(policy, has_scores=True, brief=bool(late))

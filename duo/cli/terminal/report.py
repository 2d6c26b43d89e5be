"""The report of a run: at most five lines, or with -v all statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from duo.cli.terminal.run_statistics import RunStatistics
from duo.engine.metrics import TRANSLATED
from duo.engine.statistics import (
    BranchStatistics,
    DraftStatistics,
    GenerationStatistics,
    LookupStatistics,
    PromptStatistics,
    Statistics,
)
from duo.engine.stream import Completion
from duo.spec import forecast
from duo.spec.constants import DEFAULT, assumed
from duo.spec.policy_statistics import PolicyStatistics
from duo.spec.schedule import Schedule
from duo.spec.types import common_prefix

CLOSE = 0.05  # smaller differences between two rates are noise: the machine's speed varies
_WORTH = 1.1  # times the target alone: a smaller forecast is no reason to try something
_SMALLER = 4  # times as fast as this draft is one that is a quarter of its size
_MAX_CHANGES = 5  # of the schedule that are shown
_NAMES = {
    "lookup": "lookup",
    Schedule.OFF.value: "the target alone",
    Schedule.SYNC.value: "sequential drafting",
    Schedule.ASYNC.value: "concurrent drafting",
}


def render(run: RunStatistics) -> str:
    """What a run prints at its end: at most five lines, the last `tokens: N tps: R`."""
    prompt, generation, draft, lookup = run.text.prompt, run.text.generation, run.text.draft, run.text.lookup
    seed = f"; seed {run.sampling.seed}" if run.sampling.temperature else ""
    lines = [f"speed   {_tokens(generation)}; prompt: {_tokens(prompt)}; stopped: {generation.stop}{seed}"]
    if run.has_draft:
        parts = [
            f"{draft.drafted} tokens drafted, {_accepted(draft)}" if draft and draft.drafted else "not used",
            _translated(draft) if draft and draft.vocabulary == TRANSLATED else "",
            _prepared(draft.branches) if draft and draft.branches else "",
            f"failed: {draft.error}" if draft and draft.error else "",
            f"lookup: {_accepted(lookup)}" if lookup else "",
        ]
        lines.append(f"draft   {'; '.join(filter(None, parts))}")
    elif lookup:
        lines.append(f"lookup  {_accepted(lookup)}")
    if lookup or run.has_draft:
        lines.append(f"gain    {verdict(run)}")
    if run.peak_bytes:
        lines.append(f"memory  {run.peak_bytes / 1e6:.0f} MB at most")
    return "\n".join([*lines, last_line(generation)])


def render_verbose(run: RunStatistics) -> str:
    """All statistics as lines, for -v; the last is that of `render`."""
    generation, draft, lookup, cores = run.text.generation, run.text.draft, run.text.lookup, run.cores
    lines = [
        f"prompt      {_tokens(run.text.prompt)}",
        f"first token {_value(generation.time_to_first_token_s, '.2f')} s",
        f"generated   {_tokens(generation)}; stopped: {generation.stop}",
        f"target      {generation.decodes} decodes, {_value(generation.target_ms_per_decode, '.2f')} ms each, "
        f"{_value(generation.tokens_per_decode, '.2f')} tokens each, "
        f"waited {generation.waited_s:.2f} s for the draft",
    ]
    if generation.seconds and generation.target_ms_per_decode:
        lines.append(f"time        {_time_by_activity(generation, draft)}")
    if (sampling := run.sampling).temperature:
        lines.append(f"sampling    temperature {sampling.temperature:g}, seed {sampling.seed}, {sampling.mode}")
    if cores.fewest != cores.all:
        lines.append(
            f"cores       other programs left {cores.fewest} of {cores.all} at times; now {cores.now} are used"
        )
    if draft:
        lines += _draft_lines(draft)
    if lookup:
        lines.append(f"lookup      {_accepted(lookup)} in {lookup.decodes} decodes")
    if run.policy is not None and (lookup or run.has_draft):
        lines += [*_policy_lines(run.policy, generation.tokens_by_schedule), f"gain        {verdict(run)}"]
    if run.peak_bytes:
        lines.append(f"memory      {run.peak_bytes / 1e6:.0f} MB at most")
    return "\n".join([*lines, last_line(generation)])


def last_line(generation: GenerationStatistics) -> str:
    """The last line of every run, for programs."""
    return f"tokens: {generation.tokens} tps: {generation.tokens_per_s or 0:.3f}"


def verdict(run: RunStatistics) -> str:
    """The speed compared with that of the target alone in this run, and why; there must be a policy."""
    generation, draft, lookup = run.text.generation, run.text.draft, run.text.lookup
    assert run.policy is not None
    rate, by_schedule, ms = generation.tokens_per_s, generation.tokens_by_schedule, run.policy.alone_ms.this_run
    shares = ", ".join(f"{n} {name}" for name, n in by_schedule.items())
    used = f"; tokens: {shares}" if run.has_draft and shares else ""
    if run.n_others:
        said = f"unknown: other programs used {run.n_others:.1f} cores; try again when the machine is idle"
    elif (
        rate and set(by_schedule) == {Schedule.OFF} and (lookup.verified if lookup else 0) <= CLOSE * generation.tokens
    ):
        return why_no_gain(run)
    elif not rate or not ms:
        said = "unknown: the target alone was not measured in this run"
    else:
        times, alone = rate * ms / 1000, f"{1000 / ms:.1f} tokens/s"
        if times >= 1 + CLOSE:
            sources = (("the draft", draft), ("lookup", lookup))
            who = " and ".join(name for name, found in sources if found and found.accepted) or "duo"
            said = f"{who} made this {times:.2f} times as fast (alone: {alone} by its decodes)"
        else:
            compared = "about as fast as" if times > 1 - CLOSE else f"{100 * (1 - times):.0f} % slower than"
            said = f"{why_no_gain(run)}; {compared} the target alone ({alone} by its decodes)"
    return said + used


def why_no_gain(run: RunStatistics) -> str:
    """Why draft and lookup brought nothing, and what to try; there must be a policy."""
    draft, policy = run.text.draft, run.policy
    assert policy is not None
    rates = dict(policy.forecast_tokens_per_s)
    alone, best = rates.pop(Schedule.OFF, 0.0), max(rates.values(), default=0.0)
    excellent = f"{100 * DEFAULT.excellent:.0f} %"
    is_hopeless = draft is None and policy.most_gain is not None and policy.most_gain <= 1 + DEFAULT.least_gain
    reasons = (
        (not policy.has_draft, "lookup did not pay here"),
        (run.schedule == Schedule.OFF.value, "--schedule off"),
        (draft and draft.error, f"the draft failed: {draft and draft.error}"),
        (is_hopeless, f"even a draft that is right {excellent} of the time would gain nothing"),
        (not alone, "trying the draft would have taken more time than may be spent on it"),
        (best >= (1 + CLOSE) * alone, "the draft came too late to pay; a longer text, or the next, may be faster"),
        (run.is_draft_larger, "the draft is larger than the target: are -m and -md exchanged?"),
    )
    return next((words for applies, words in reasons if applies), "") or _remedy(policy, is_apart=run.apart)


def _remedy(policy: PolicyStatistics, *, is_apart: bool) -> str:
    """What the draft lacks, and what would help by the forecasts."""
    said, curve = "the draft did not pay here", policy.curve_ms.alone
    draft_ms = policy.draft_ms.alone or policy.draft_ms.beside
    if not curve or not draft_ms:
        return said
    pair = max(1.0, (policy.pair_ms or 0.0) / draft_ms or assumed(DEFAULT.pair, 0.0))

    def gains(times: float, acceptance: float) -> bool:
        ms = times * draft_ms
        found = forecast.taking_turns(curve, ms, [(1.0, acceptance)], pair * ms)
        return found.rate * curve[0] >= _WORTH

    trials = (
        (1 / _SMALLER, policy.acceptance, "a smaller one (duo tune)"),
        (1.0, DEFAULT.excellent, "one more like the target (duo tune)"),
        (1 / _SMALLER, DEFAULT.excellent, "a smaller and better one (duo tune)"),
        (0.0, policy.acceptance, "a much smaller one" if is_apart else "another device (-devd) or machine (duo back)"),
    )
    advice = next((advice for times, share, advice in trials if gains(times, share)), "the target alone (omit -md)")
    needs = f"{_percent(draft_ms / curve[0])} of the target's time per token"
    return f"{said}: it needs {needs}, and {100 * policy.acceptance:.0f} % of its tokens are right; try {advice}"


def _time_by_activity(generation: GenerationStatistics, draft: DraftStatistics | None) -> str:
    """Where the time since the first token went, as shares of it."""
    seconds, target_s = generation.seconds, generation.decodes * (generation.target_ms_per_decode or 0.0) / 1000
    rest_s = max(0.0, seconds - target_s - generation.waited_s)
    parts = {"target computes": target_s, "waits for the draft": generation.waited_s, "rest": rest_s}
    said = ", ".join(f"{name} {_percent(part_s / seconds)}" for name, part_s in parts.items() if part_s)
    if draft and draft.computed_s:
        share, concurrent = _percent(draft.computed_s / seconds), _percent(draft.hidden)
        said += f"; draft computes {share}, {concurrent} of that concurrently with the target"
    return said


def _accepted(found: DraftStatistics | LookupStatistics) -> str:
    return f"{found.verified} verified, {found.accepted} accepted ({_percent(found.accept_rate)})"


def _prepared(branches: BranchStatistics) -> str:
    return f"{branches.prepared} outcomes prepared, hit rate {_percent(branches.hit_rate)}"


def _translated(draft: DraftStatistics) -> str:
    return f"vocabulary translated, {_value(draft.lost_to_translation, 'd')} guesses lost by it"


def _draft_lines(draft: DraftStatistics) -> list[str]:
    lines = [
        f"draft       {draft.drafted} drafted, {_accepted(draft)}; {_percent(draft.unused)} of the drafted never used",
        f"            {_value(draft.ms_per_token, '.2f')} ms/token",
    ]
    if draft.accept_rate_by_position:
        lines.append(f"            accepted by position, %: {_shares(draft.accept_rate_by_position)}")
        sizes = ", ".join(f"{n} × {k}" for k, n in enumerate(draft.decodes_by_candidates) if n)
        lines.append(f"            decodes × candidates verified: {sizes}")
    if draft.vocabulary == TRANSLATED:
        lines.append(f"            {_translated(draft)}")
    if draft.error:
        lines.append(f"            the draft failed: {draft.error}")
    if branches := draft.branches:
        lines.append(
            f"branches    {_prepared(branches)} ({branches.hits} of {branches.contradictions} contradictions); "
            f"{branches.tokens} tokens drafted in them; by position, %: {_shares(branches.hit_rate_by_position)}"
        )
    return lines


def _policy_lines(policy: PolicyStatistics, tokens: dict[str, int]) -> list[str]:
    """The schedules, and the times that were measured: the others are interpolated or assumed."""
    target, draft = policy.target_ms, policy.draft_ms
    measured = []
    for name, times, draft_ms in (
        ("alone or sequential", target.alone, draft.alone),
        ("concurrent", target.beside, draft.beside),
    ):
        if times:
            values = ", ".join(f"T({n}) = {ms:.1f}" for n, ms in times.items())
            measured.append(f"measured    {name}: {values} ms, draft {_value(draft_ms, '.1f')} ms")
    if not policy.has_draft:
        return measured
    shares = ", ".join(f"{n} tokens {schedule}" for schedule, n in tokens.items())
    forecasts = ", ".join(f"{schedule.value} {rate:.1f}" for schedule, rate in policy.forecast_tokens_per_s.items())
    changes = [f"            {each.schedule.value} at {each.tokens} ({each.reason})" for each in policy.changes]
    return [
        f"schedule    {shares or policy.schedule.value}; forecast in tokens/s: {forecasts or '-'}",
        *changes[:_MAX_CHANGES],
        *measured,
        f"            {_percent(policy.acceptance)} accepted, λ = {policy.rate:.1f} tokens/s",
    ]


def _tokens(phase: PromptStatistics | GenerationStatistics) -> str:
    return f"{phase.tokens} tokens in {phase.seconds:.2f} s, {_value(phase.tokens_per_s, '.1f')} tokens/s"


def _shares(shares: Iterable[float | None]) -> str:
    return " ".join(_value(None if share is None else 100 * share, ".0f") for share in shares)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _value(number: float | None, form: str) -> str:
    return "-" if number is None else f"{number:{form}}"


# The demo: duo beside the target alone, and what the policy chose and why


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

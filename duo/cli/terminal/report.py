"""The report of a run: at most five lines, or with -v all statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable

from duo.cli.terminal.run_statistics import CoreCounts, RunStatistics
from duo.cli.terminal.verdict import verdict
from duo.engine.metrics import TRANSLATED
from duo.engine.statistics import (
    BranchStatistics,
    DraftStatistics,
    GenerationStatistics,
    LookupStatistics,
    PromptStatistics,
)
from duo.spec.constants import DEFAULT
from duo.spec.policy_statistics import PolicyStatistics
from duo.spec.schedule import Schedule

_CHANGES_SHOWN = 5


def render(run: RunStatistics) -> str:
    """What a run prints at its end: at most five lines, the last `tokens: N tps: R`."""
    prompt, generation, draft, lookup = run.text.prompt, run.text.generation, run.text.draft, run.text.lookup
    seed = f"; seed {run.sampling.seed}" if run.sampling.temperature else ""
    lines = [f"speed   {_tokens(generation)}; prompt: {_tokens(prompt)}; stopped: {generation.stop}{seed}"]
    more = f"; lookup: {_found(lookup)}" if lookup else ""
    if not_used := _not_used(run):
        lines.append(f"draft   {not_used}{more}")
    elif draft:
        parts = [
            f"{draft.drafted} tokens drafted, {draft.verified} verified, {draft.accepted} accepted "
            f"({_percent(draft.accept_rate)})",
            _translated(draft) if draft.vocabulary == TRANSLATED else "",
            _prepared(draft.branches) if draft.branches else "",
            f"failed: {draft.error}" if draft.error else "",
        ]
        lines.append(f"draft   {'; '.join(filter(None, parts))}{more}")
    elif lookup:
        lines.append(f"lookup  {_found(lookup)}")
    if lookup or run.has_draft:
        lines.append(f"gain    {verdict(run)}")
    if run.peak_bytes:
        lines.append(f"memory  {_memory(run.peak_bytes)}")
    return "\n".join([*lines, last_line(generation)])


def render_verbose(run: RunStatistics) -> str:
    """All statistics as lines, for -v; the last is that of `render`."""
    prompt, generation, draft, lookup = run.text.prompt, run.text.generation, run.text.draft, run.text.lookup
    lines = [
        f"prompt      {_tokens(prompt)}",
        f"first token {_value(generation.time_to_first_token_s, '.2f', ' s')}",
        f"generated   {_tokens(generation)}; stopped: {generation.stop}",
        f"target      {generation.decodes} decodes, {_value(generation.target_ms_per_decode, '.2f')} ms each, "
        f"{_value(generation.tokens_per_decode, '.2f')} tokens each, "
        f"waited {generation.waited_s:.2f} s for the draft",
    ]
    if generation.seconds and generation.target_ms_per_decode:
        lines.append(f"time        {_time_by_activity(generation, draft)}")
    if (sampling := run.sampling).temperature:
        lines.append(f"sampling    temperature {sampling.temperature:g}, seed {sampling.seed}, {sampling.mode}")
    if run.cores.fewest != run.cores.all:
        lines.append(f"cores       {_cores(run.cores)}")
    if not_used := _not_used(run):
        lines.append(f"draft       {not_used}")
    elif draft:
        lines += _draft_lines(draft)
    if lookup:
        lines.append(f"lookup      {_found(lookup)} in {lookup.decodes} decodes")
    if run.policy is not None and (lookup or run.has_draft):
        lines += _policy_lines(run.policy, generation.tokens_by_schedule)
        lines.append(f"gain        {verdict(run)}")
    if run.peak_bytes:
        lines.append(f"memory      {_memory(run.peak_bytes)}")
    return "\n".join([*lines, last_line(generation)])


def last_line(generation: GenerationStatistics) -> str:
    """The last line of every run, for programs."""
    return f"tokens: {generation.tokens} tps: {generation.tokens_per_s or 0:.3f}"


def why_not_used(policy: PolicyStatistics, *, has_scores: bool) -> str:
    """Why nothing was drafted for a text; `has_scores`: the draft was probed."""
    most, rates = policy.most_gain, dict(policy.forecast_tokens_per_s)
    alone = rates.pop(Schedule.OFF, None)
    least = 1 + DEFAULT.least_gain
    if not has_scores and most is not None and most <= least:
        gain = max(0, math.ceil(100 * (most - 1)))
        gains = f"at most {gain} %" if gain else "nothing"
        return f"even a draft that is right {100 * DEFAULT.excellent:.0f} % of the time would gain {gains}"
    if alone and rates and max(rates.values()) <= least * alone:
        return forecast(policy, has_scores=has_scores)
    if policy.changes or policy.schedule is not Schedule.OFF:  # it was to draft
        return "no candidate was ready or worth its time"
    return "trying the draft would have taken more time than may be spent on it"


def forecast(policy: PolicyStatistics, *, has_scores: bool, brief: bool = False) -> str:
    """The rates of the target alone and of the best schedule with the draft, which must be known.

    `has_scores`: the draft was compared with this text, so how often it is right is said, unless `brief`.
    """
    rates = dict(policy.forecast_tokens_per_s)
    alone, drafted = rates.pop(Schedule.OFF), max(rates.values())
    draft = f"a draft that is {100 * policy.acceptance:.0f} % right" if has_scores and not brief else "the draft"
    source = "by earlier runs" if not has_scores and policy.scored else "forecast"
    return f"{source} {alone:.1f} tokens/s alone, {drafted:.1f} with {draft}"


def _not_used(run: RunStatistics) -> str:
    """That there is a draft which has drafted nothing, and why; empty otherwise."""
    draft, policy = run.text.draft, run.policy
    if policy is None or not policy.has_draft or (draft and (draft.drafted or draft.error)):
        return ""
    forced = f"--schedule {run.schedule}" if run.schedule == Schedule.OFF.value else ""
    return f"not used: {forced or why_not_used(policy, has_scores=draft is not None)}"


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


def _prepared(branches: BranchStatistics) -> str:
    return f"{branches.prepared} outcomes prepared, hit rate {_percent(branches.hit_rate)}"


def _translated(draft: DraftStatistics) -> str:
    lost = draft.lost_to_translation
    return "vocabulary translated" + (f", {lost} guesses lost by it" if lost is not None else "")


def _found(lookup: LookupStatistics) -> str:
    share = _percent(lookup.accept_rate)
    return f"{lookup.verified} tokens from the text itself verified, {lookup.accepted} accepted ({share})"


def _memory(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB at most"


def _cores(cores: CoreCounts) -> str:
    return f"other programs left {cores.fewest} of {cores.all} at times; now {cores.now} are used"


def _draft_lines(draft: DraftStatistics) -> list[str]:
    lines = [
        f"draft       {draft.drafted} drafted, {draft.verified} verified, {draft.accepted} accepted "
        f"({_percent(draft.accept_rate)}); {_percent(draft.unused)} of the drafted never used",
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
            f"{branches.tokens} tokens drafted in them"
        )
        if branches.hit_rate_by_position:
            lines.append(f"            hit rate by position, %: {_shares(branches.hit_rate_by_position)}")
    return lines


def _policy_lines(policy: PolicyStatistics, tokens: dict[str, int]) -> list[str]:
    """The schedules, and the measurements that they were chosen by."""
    measured = _measured(policy, tokens)
    if not policy.has_draft:
        return measured
    shares = ", ".join(f"{n} tokens {schedule}" for schedule, n in tokens.items())
    forecasts = ", ".join(f"{schedule.value} {rate:.1f}" for schedule, rate in policy.forecast_tokens_per_s.items())
    more = len(policy.changes) - _CHANGES_SHOWN
    return [
        f"schedule    {shares or policy.schedule.value}; forecast in tokens/s: {forecasts or '-'}",
        *(
            f"            {change.schedule.value} at {change.tokens} ({change.reason})"
            for change in policy.changes[:_CHANGES_SHOWN]
        ),
        *([f"            and {more} more changes"] if more > 0 else []),
        *measured,
        f"            {_percent(policy.acceptance)} accepted, λ = {policy.rate:.1f} tokens/s",
    ]


def _measured(policy: PolicyStatistics, tokens: dict[str, int]) -> list[str]:
    """The times that were measured, by size of the batch; those between them are interpolated, larger ones assumed."""
    lines, target, draft, measured = [], policy.target_ms, policy.draft_ms, policy.measured
    for words, schedule, times, draft_ms, sizes in (
        ("alone or sequential", Schedule.SYNC, target.alone, draft.alone, measured.alone),
        ("concurrent", Schedule.ASYNC, target.beside, draft.beside, measured.beside),
    ):
        found = []
        if times:
            found.append(f"T({_listed(times)}) = {', '.join(f'{ms:.1f}' for ms in times.values())} ms")
        if earlier := [n for n in sizes if n not in times]:
            found.append(f"T({_listed(earlier)}) in earlier runs")
        if schedule.value in tokens and draft_ms:  # otherwise it may be assumed
            found.append(f"draft {draft_ms:.1f} ms")
        if found:
            lines.append(f"measured    {words}: {', '.join(found)}")
    return lines


def _tokens(phase: PromptStatistics | GenerationStatistics) -> str:
    return f"{phase.tokens} tokens in {phase.seconds:.2f} s, {_value(phase.tokens_per_s, '.1f')} tokens/s"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _shares(shares: Iterable[float | None]) -> str:
    return " ".join(_value(None if share is None else 100 * share, ".0f") for share in shares)


def _percent(share: float | None) -> str:
    return _value(None if share is None else 100 * share, ".1f", " %")


def _value(number: float | None, form: str, unit: str = "") -> str:
    return "-" if number is None else f"{number:{form}}{unit}"

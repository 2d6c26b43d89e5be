"""The report of a run, and the document of --json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from duo.cli.terminal.verdict import has_draft, verdict
from duo.engine.metrics import TRANSLATED
from duo.engine.slot import Slot
from duo.llama import library
from duo.llama.build import versions
from duo.llama.devices import Device, list_devices
from duo.llama.model import Model
from duo.spec.constants import DEFAULT
from duo.spec.schedule import Schedule

_CHANGES_SHOWN = 5


def facts(slot: Slot, options: dict[str, Any]) -> dict[str, Any]:
    """Versions, models, threads and options of a run, for --json."""
    target, draft, threads = slot.target, slot.draft_model, asdict(slot.threads)
    return {
        "versions": versions(),
        "system": library.system_info(),
        "devices": [_device_facts(device) for device in list_devices()],
        "models": {
            "target": _model_facts(target),
            "draft": _model_facts(draft) if draft is not None else None,
        },
        "threads": {name: sorted(n) if isinstance(n, frozenset) else n for name, n in threads.items()},
        "context": slot.n_ctx,
        "options": plain_options(options),
    }


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON types."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def _device_facts(device: Device) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": device.name, "description": device.description, "kind": device.kind}
    return facts | dict(zip(("memory_free", "memory_total"), device.memory, strict=True))


def _model_facts(model: Model) -> dict[str, Any]:
    return {
        "path": str(model.path),
        "description": model.description,
        "bytes": model.n_bytes,
        "params": model.n_params,
        "layers": model.n_layer,
        "quantisation": model.quantisation,
        "vocabulary": model.n_vocab,
        "trained_context": model.n_ctx_train,
    }


def render(statistics: dict[str, Any], schedule: str = "auto", **conditions: Any) -> str:
    """What a run with --schedule `schedule` prints at its end: at most five lines, the last `tokens: N tps: R`.

    `conditions`: see verdict().
    """
    prompt, generation, draft = statistics["prompt"], statistics["generation"], statistics["draft"]
    sampling = statistics["sampling"]
    seed = f"; seed {sampling['seed']}" if sampling["temperature"] else ""
    lines = [
        f"speed   {generation['tokens']} tokens in {generation['seconds']:.2f} s, {_rate(generation)} tokens/s; "
        f"prompt: {prompt['tokens']} tokens in {prompt['seconds']:.2f} s, {_rate(prompt)} tokens/s; "
        f"stopped: {generation['stop']}{seed}"
    ]
    policy, lookup = statistics.get("policy"), _found(statistics["lookup"])
    beside = f"; lookup: {lookup}" if lookup else ""
    if not_used := _not_used(draft, policy, schedule):
        lines.append(f"draft   {not_used}{beside}")
    elif draft:
        failure = f"; failed: {draft['error']}" if draft["error"] else ""
        translated = f"; {_translated(draft)}" if draft["vocabulary"] == TRANSLATED else ""
        branches = f"; {_prepared(draft['branches'])}" if draft["branches"] else ""
        lines.append(
            f"draft   {draft['drafted']} tokens drafted, {draft['verified']} verified, {draft['accepted']} accepted "
            f"({_percent(draft['accept_rate'])}){translated}{branches}{failure}{beside}"
        )
    elif lookup:
        lines.append(f"lookup  {lookup}")
    if policy and (lookup or has_draft(policy)):
        lines.append(f"gain    {verdict(statistics, **conditions)}")
    if statistics["memory"]["peak_bytes"]:
        lines.append(f"memory  {_memory(statistics)}")
    return "\n".join([*lines, last_line(generation)])


def _prepared(branches: dict[str, Any]) -> str:
    """The outcomes prepared, and how often one of them came true."""
    return f"{branches['prepared']} outcomes prepared, hit rate {_percent(branches['hit_rate'])}"


def _translated(draft: dict[str, Any]) -> str:
    """That the draft has another vocabulary."""
    lost = draft["lost_to_translation"]
    return "vocabulary translated" + (f", {lost} guesses lost by it" if lost is not None else "")


def _not_used(draft: dict[str, Any] | None, policy: dict[str, Any] | None, schedule: str) -> str:
    """That there is a draft which has drafted nothing, and why; empty otherwise."""
    if not policy or not has_draft(policy) or (draft and (draft["drafted"] or draft["error"])):
        return ""
    forced = f"--schedule {schedule}" if schedule == Schedule.OFF.value else ""
    return f"not used: {forced or why_not_used(policy, has_scores=draft is not None)}"


def _found(lookup: dict[str, Any] | None) -> str:
    """The candidates from the text itself; empty if there were none."""
    if lookup is None:
        return ""
    share = _percent(lookup["accept_rate"])
    return f"{lookup['verified']} tokens from the text itself verified, {lookup['accepted']} accepted ({share})"


def why_not_used(policy: dict[str, Any], *, has_scores: bool) -> str:
    """Why nothing was drafted for a text; `has_scores`: the draft was probed."""
    most, rates = policy["most_gain"], dict(policy["forecast_tokens_per_s"])
    alone = rates.pop(Schedule.OFF.value, None)
    least = 1 + DEFAULT.least_gain
    if not has_scores and most is not None and most <= least:
        gain = max(0, math.ceil(100 * (most - 1)))
        gains = f"at most {gain} %" if gain else "nothing"
        return f"even a draft that is right {100 * DEFAULT.excellent:.0f} % of the time would gain {gains}"
    if alone and rates and max(rates.values()) <= least * alone:
        return forecast(policy, has_scores=has_scores)
    if policy["changes"] or policy["schedule"] != Schedule.OFF.value:  # it was to draft
        return "no candidate was ready or worth its time"
    return "trying the draft would have taken more time than may be spent on it"


def forecast(policy: dict[str, Any], *, has_scores: bool, brief: bool = False) -> str:
    """The rates of the target alone and of the best schedule with the draft, which must be known.

    `has_scores`: the draft was compared with this text, so how often it is right is said, unless `brief`.
    """
    rates = dict(policy["forecast_tokens_per_s"])
    alone, drafted = rates.pop(Schedule.OFF.value), max(rates.values())
    draft = f"a draft that is {100 * policy['acceptance']:.0f} % right" if has_scores and not brief else "the draft"
    source = "by earlier runs" if not has_scores and policy["scored"] else "forecast"
    return f"{source} {alone:.1f} tokens/s alone, {drafted:.1f} with {draft}"


def _memory(statistics: dict[str, Any]) -> str:
    return f"{statistics['memory']['peak_bytes'] / 1e6:.0f} MB at most"


def last_line(generation: dict[str, Any]) -> str:
    """The last line of every run, for programs."""
    return f"tokens: {generation['tokens']} tps: {generation['tokens_per_s'] or 0:.3f}"


def render_verbose(statistics: dict[str, Any], schedule: str = "auto", **conditions: Any) -> str:
    """All statistics as lines, for -v; the last is that of `render`."""
    prompt, generation, draft = statistics["prompt"], statistics["generation"], statistics["draft"]
    lines = [
        f"prompt      {prompt['tokens']} tokens in {prompt['seconds']:.2f} s, {_rate(prompt)} tokens/s",
        f"first token {_value(generation['time_to_first_token_s'], '.2f', ' s')}",
        f"generated   {generation['tokens']} tokens in {generation['seconds']:.2f} s, {_rate(generation)} tokens/s; "
        f"stopped: {generation['stop']}",
        f"target      {generation['decodes']} decodes, {_value(generation['target_ms_per_decode'], '.2f')} ms each, "
        f"{_value(generation['tokens_per_decode'], '.2f')} tokens each, "
        f"waited {generation['waited_s']:.2f} s for the draft",
    ]
    if generation["seconds"] and generation["target_ms_per_decode"]:
        lines.append(f"time        {time_by_activity(generation, draft)}")
    if (sampling := statistics["sampling"])["temperature"]:
        lines.append(
            f"sampling    temperature {sampling['temperature']:g}, seed {sampling['seed']}, {sampling['mode']}"
        )
    if cores := _cores(statistics):
        lines.append(f"cores       {cores}")
    policy = statistics.get("policy")
    if not_used := _not_used(draft, policy, schedule):
        lines.append(f"draft       {not_used}")
    elif draft:
        lines += _draft_lines(draft)
    if lookup := statistics["lookup"]:
        lines.append(f"lookup      {_found(lookup)} in {lookup['decodes']} decodes")
    if policy and (lookup or has_draft(policy)):
        lines += _policy_lines(policy, generation["tokens_by_schedule"])
        lines.append(f"gain        {verdict(statistics, **conditions)}")
    if statistics["memory"]["peak_bytes"]:
        lines.append(f"memory      {_memory(statistics)}")
    return "\n".join([*lines, last_line(generation)])


def time_by_activity(generation: dict[str, Any], draft: dict[str, Any] | None) -> str:
    """Where the time since the first token went, as shares of it."""
    seconds, target_s = generation["seconds"], generation["decodes"] * generation["target_ms_per_decode"] / 1000
    waited_s = generation["waited_s"]
    rest_s = max(0.0, seconds - target_s - waited_s)
    parts = {"target computes": target_s, "waits for the draft": waited_s, "rest": rest_s}
    said = ", ".join(f"{name} {_percent(part_s / seconds)}" for name, part_s in parts.items() if part_s)
    if draft and draft["computed_s"]:
        share, concurrent = _percent(draft["computed_s"] / seconds), _percent(draft["hidden"])
        said += f"; draft computes {share}, {concurrent} of that concurrently with the target"
    return said


def _cores(statistics: dict[str, Any]) -> str:
    """The cores that other programs have left to the decodes; empty if they have left all."""
    cores = statistics.get("cores")
    if cores is None or cores["fewest"] == cores["all"]:
        return ""
    return f"other programs left {cores['fewest']} of {cores['all']} at times; now {cores['now']} are used"


def _draft_lines(draft: dict[str, Any]) -> list[str]:
    positions = " ".join(f"{100 * share:.0f}" for share in draft["accept_rate_by_position"])
    lines = [
        f"draft       {draft['drafted']} drafted, {draft['verified']} verified, {draft['accepted']} accepted "
        f"({_percent(draft['accept_rate'])}); {_percent(draft['unused'])} of the drafted never used",
        f"            {_value(draft['ms_per_token'], '.2f')} ms/token",
    ]
    if positions:
        lines.append(f"            accepted by position, %: {positions}")
        sizes = ", ".join(f"{n} × {k}" for k, n in enumerate(draft["decodes_by_candidates"]) if n)
        lines.append(f"            decodes × candidates verified: {sizes}")
    if draft["vocabulary"] == TRANSLATED:
        lines.append(f"            {_translated(draft)}")
    if draft["error"]:
        lines.append(f"            the draft failed: {draft['error']}")
    return lines + (_branch_lines(draft["branches"]) if draft["branches"] else [])


def _branch_lines(branches: dict[str, Any]) -> list[str]:
    shares = (_value(None if share is None else 100 * share, ".0f") for share in branches["hit_rate_by_position"])
    lines = [
        f"branches    {_prepared(branches)} ({branches['hits']} of {branches['contradictions']} contradictions); "
        f"{branches['tokens']} tokens drafted in them"
    ]
    positions = " ".join(shares)
    return [*lines, f"            hit rate by position, %: {positions}"] if positions else lines


def _policy_lines(policy: dict[str, Any], tokens: dict[str, int]) -> list[str]:
    """The schedules, and the measurements that they were chosen by."""
    shares = ", ".join(f"{n} tokens {schedule}" for schedule, n in tokens.items())
    forecasts = ", ".join(f"{schedule} {rate:.1f}" for schedule, rate in policy["forecast_tokens_per_s"].items())
    changes = [f"{change['schedule']} at {change['tokens']} ({change['reason']})" for change in policy["changes"]]
    more = len(changes) - _CHANGES_SHOWN
    drafts = has_draft(policy)
    lines = [f"schedule    {shares or policy['schedule']}; forecast in tokens/s: {forecasts or '-'}"] if drafts else []
    lines += [f"            {change}" for change in changes[:_CHANGES_SHOWN]]
    lines += [f"            and {more} more changes"] if more > 0 else []
    lines += _measured(policy, tokens)
    accepted = f"            {_percent(policy['acceptance'])} accepted, λ = {policy['rate']:.1f} tokens/s"
    return [*lines, accepted] if drafts else lines


def _measured(policy: dict[str, Any], tokens: dict[str, int]) -> list[str]:
    """The times that were measured, by size of the batch; those between them are interpolated, larger ones assumed."""
    lines = []
    for name, words, schedule in (("alone", "alone or sequential", "sync"), ("beside", "concurrent", "async")):
        times, ms = policy["target_ms"][name], policy["draft_ms"][name]
        found = [f"T({', '.join(times)}) = {', '.join(f'{ms:.1f}' for ms in times.values())} ms"] if times else []
        if earlier := [str(n) for n in policy["measured"][name] if str(n) not in times]:
            found.append(f"T({', '.join(earlier)}) in earlier runs")
        if schedule in tokens and ms:  # otherwise it may be assumed
            found.append(f"draft {ms:.1f} ms")
        if found:
            lines.append(f"measured    {words}: {', '.join(found)}")
    return lines


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write `document`. Raises OSError."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _rate(phase: dict[str, Any]) -> str:
    return _value(phase["tokens_per_s"], ".1f")


def _percent(share: float | None) -> str:
    return _value(None if share is None else 100 * share, ".1f", " %")


def _value(number: float | None, form: str, unit: str = "") -> str:
    return "-" if number is None else f"{number:{form}}{unit}"

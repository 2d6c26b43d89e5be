"""`duo plan`: predicts the speed with a draft from decode times, for any hardware."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from duo.cli.options.plan import MAX_DRAFT, PlanOptions
from duo.cli.terminal.console import say
from duo.errors import UsageError
from duo.models.files import MIB, read_path
from duo.spec import forecast
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine, constant, replay

_N_TOKENS = 20_000
_MAX_STATISTICS = 64 * MIB
_LEAST_MS, _MOST_MS = 1e-6, 1e9  # times that a decode can take
_MOST_TOKENS = 2**31  # in a batch

Times = dict[int, float]  # ms by batch size


def plan(options: PlanOptions) -> int:
    """Print predictions. Returns the exit status. Raises UsageError."""
    machine, acceptance = _inputs(options)
    sizes = [1, 2, 4, 5, 8]
    times = ", ".join(f"{1000 * machine.target_s[n - 1]:.4g}" for n in sizes)
    say(
        f"target {times} ms for batches of {', '.join(map(str, sizes))}; "
        f"draft {1000 * machine.draft_s:.4g} ms per token; {100 * acceptance:.0f} % accepted"
    )
    rates = predict(machine, acceptance, options.draft)
    print("\n".join(render(machine, acceptance, rates, options.draft)))  # noqa: T201 - the output
    return 0


def predict(machine: Machine, acceptance: float, n_max: int) -> dict[Schedule, float]:
    """The speed of each schedule in tokens/s, by a simulation of the policy; never above most_rate()."""
    most = most_rate(machine, acceptance, n_max)
    rates = {}
    for schedule in Schedule:
        policy = Policy(n_max, 2 * n_max, (schedule,), apart=True)
        # A draft may be right more often in one simulation than on average.
        rates[schedule] = min(most, replay(policy, machine, constant(acceptance), _N_TOKENS).rate)
    return rates


def most_rate(machine: Machine, acceptance: float, n_max: int) -> float:
    """The limit of all schedules, in tokens/s: sequential ones have other costs than concurrent ones."""
    n = n_max + 1
    return max(
        forecast.limit(machine.target_s[:n], machine.draft_s, acceptance),
        forecast.limit(machine.beside_target_s[:n], machine.beside_draft_s, acceptance),
    )


def render(machine: Machine, acceptance: float, rates: dict[Schedule, float], n_max: int) -> list[str]:
    """The predicted `rates` as a table, with the settings that reach them."""
    sync = forecast.taking_turns(machine.target_s[: n_max + 1], machine.draft_s, acceptance)
    concurrent = machine.beside_target_s[: n_max + 1], machine.beside_draft_s, acceptance
    both = forecast.overlapped(*concurrent, 2 * n_max)
    drafts = f"draft {sync.n_verify}, then verify" if sync.n_verify else "no drafting"
    rows = [
        ("plain", rates[Schedule.OFF], "the target alone"),
        ("sequential", rates[Schedule.SYNC], drafts),
        ("concurrent", rates[Schedule.ASYNC], f"wait for {both.n_wait}, verify up to {both.n_verify}"),
        ("limit", most_rate(machine, acceptance, n_max), "min(1/t_d, E/T(k+1))"),
    ]
    plain = rates[Schedule.OFF]
    lines = [f"{name:<13}{rate:8.2f} tokens/s  {rate / plain:5.2f}×   {words}" for name, rate, words in rows]
    best = fastest(rates)
    return [*lines, f"best: --schedule {best.value}{sufficient(machine, acceptance, best, n_max)}"]


def fastest(rates: dict[Schedule, float]) -> Schedule:
    """The schedule with the highest rate; of equal ones, the target alone."""
    return max(rates, key=lambda schedule: (round(rates[schedule] / rates[Schedule.OFF], 6), schedule is Schedule.OFF))


def sufficient(machine: Machine, acceptance: float, schedule: Schedule, n_max: int) -> str:
    """The smallest --draft within 1 % of the best for this schedule, in words."""
    if schedule is Schedule.OFF:
        return ""
    sizes = range(1, n_max + 1)
    if schedule is Schedule.SYNC:
        rates = [forecast.taking_turns(machine.target_s[: k + 1], machine.draft_s, acceptance).rate for k in sizes]
    else:
        times, draft_s = machine.beside_target_s, machine.beside_draft_s
        rates = [forecast.overlapped(times[: k + 1], draft_s, acceptance, 2 * k).rate for k in sizes]
    enough = next(k for k, rate in zip(sizes, rates, strict=True) if rate >= 0.99 * max(rates))
    return f"; --draft {enough} is sufficient"


def _inputs(options: PlanOptions) -> tuple[Machine, float]:
    if options.target_ms and options.table:
        raise UsageError("--target-ms and --table both give the target's times: use only one")
    times, concurrent, draft_ms, concurrent_draft_ms, accept = _read_statistics(options.stats)
    if options.target_ms or options.table:
        times = concurrent = read_table(options.table) if options.table else _parse_times(options.target_ms or "")
    if options.draft_ms is not None:
        draft_ms = concurrent_draft_ms = options.draft_ms
    accept = accept if options.accept is None else options.accept
    if not times or not concurrent or draft_ms is None or concurrent_draft_ms is None or accept is None:
        raise UsageError("missing values: add --target-ms or --table, --draft-ms and --accept, or --json of a run")
    if not 0 <= accept <= 1:
        raise UsageError(f"--accept must be between 0 and 1, not {accept:g}")
    if not _LEAST_MS <= draft_ms <= _MOST_MS:
        raise UsageError(f"--draft-ms must be between {_LEAST_MS:g} and {_MOST_MS:g}, not {draft_ms:g}")
    return Machine(_curve(times), draft_ms / 1000, _curve(concurrent), concurrent_draft_ms / 1000), accept


def _parse_times(text: str) -> Times:
    """`490`, or `1:490,2:495,8:650`. Raises UsageError."""
    try:
        pairs = [pair.split(":") if ":" in pair else ("1", pair) for pair in text.replace(" ", "").split(",")]
        times = {int(n): float(ms) for n, ms in pairs}
        if len(times) < len(pairs):
            raise ValueError("a size is given twice")
        return _checked(times)
    except ValueError:
        raise UsageError(f"--target-ms must have the form 490 or 1:490,2:495,8:650, not {text!r}") from None


def read_table(path: Path) -> Times:
    """Lines of `n ms` or `n,ms`; comments with # and a heading are skipped. Raises UsageError."""
    try:
        lines = [line.replace(",", " ").split() for line in read_path(path, MIB).decode().splitlines()]
        return _checked({int(words[0]): float(words[1]) for words in lines if words and words[0].isdecimal()})
    except OSError as error:
        raise UsageError(f"--table {path}: {error.strerror}") from error
    except (ValueError, IndexError):
        raise UsageError(f"--table {path}: each line must have a batch size and a time in ms, such as: 1 490") from None


def _read_statistics(path: Path | None) -> tuple[Times, Times, float | None, float | None, float | None]:
    """Times of target and draft, alone and concurrent, and the acceptance rate of a run. Raises UsageError."""
    if path is None:
        return {}, {}, None, None, None
    try:
        policy: dict[str, Any] = json.loads(read_path(path, _MAX_STATISTICS))["policy"]
        if policy.get("schedules") == ["off"]:
            raise KeyError("there was no draft")
        curves, drafts = ([policy[name][key] for key in ("alone", "beside")] for name in ("curve_ms", "draft_ms"))
        if None in (*curves, *drafts):
            raise UsageError(f"--json {path}: too few measurements: use a longer run")
        times, concurrent = (_checked({n: float(ms) for n, ms in enumerate(curve, 1)}) for curve in curves)
        draft_ms, concurrent_draft_ms = (_checked({1: float(ms)})[1] for ms in drafts)
        return times, concurrent, draft_ms, concurrent_draft_ms, float(policy["acceptance"])
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise UsageError(f"--json {path}: not the statistics of a run with a draft") from None


def _checked(times: Times) -> Times:
    if 1 not in times or not all(1 <= n <= _MOST_TOKENS and _LEAST_MS <= ms <= _MOST_MS for n, ms in times.items()):
        raise ValueError("times")
    return times


def _curve(times: Times) -> list[float]:
    """T(1) to T(17) in seconds: interpolated linearly, and extrapolated with the last slope."""
    known, sizes = sorted(times), np.arange(1, MAX_DRAFT + 2)
    found = np.interp(sizes, known, [times[n] for n in known])
    if len(known) > 1:
        slope = max(0.0, (times[known[-1]] - times[known[-2]]) / (known[-1] - known[-2]))
        found = found + slope * np.maximum(0, sizes - known[-1])
    return [float(ms) / 1000 for ms in found]

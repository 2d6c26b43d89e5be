"""`duo plan`: predicts the speed with a draft from decode times, for any hardware."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duo.bench.machines import read_pair
from duo.cli.options.plan import MAX_DRAFT, PlanOptions
from duo.cli.terminal.console import say
from duo.config import MAX_BRANCHES
from duo.errors import UsageError
from duo.models.files import MIB, read_path
from duo.spec import forecast
from duo.spec.constants import DEFAULT
from duo.spec.forecast import Forecast
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine, constant, foresee

_N_TOKENS = 20_000
_MAX_STATISTICS = 64 * MIB
_LEAST_MS, _MOST_MS = 1e-6, 1e9  # times that a decode can take
_MOST_TOKENS = 2**31  # in a batch

Times = dict[int, float]  # ms by batch size


def plan(options: PlanOptions) -> int:
    """Print predictions. Returns the exit status. Raises UsageError."""
    found = _inputs(options)
    machine, acceptance = found.machine, found.acceptance
    sizes = [1, 2, 4, 5, 8]
    times = ", ".join(f"{1000 * machine.target_s[n - 1]:.4g}" for n in sizes)
    say(
        f"target {times} ms for batches of {', '.join(map(str, sizes))}; "
        f"draft {1000 * machine.draft_s:.4g} ms per token; {100 * acceptance:.0f} % accepted"
    )
    rates = predict(machine, acceptance, options.draft)
    prepared = prepare(machine, acceptance, options.draft, found.ranks)
    print("\n".join(render(machine, acceptance, rates, options.draft, prepared)))  # noqa: T201 - the output
    return 0


def predict(machine: Machine, acceptance: float, n_max: int) -> dict[Schedule, float]:
    """The speed of each schedule in tokens/s, by a simulation of the policy; never above most_rate()."""
    most = most_rate(machine, acceptance, n_max)
    # A draft may be right more often in one simulation than on average.
    return {
        schedule: min(most, foresee(machine, schedule, constant(acceptance), n_max, _N_TOKENS).rate)
        for schedule in Schedule
    }


def prepare(
    machine: Machine, acceptance: float, n_max: int, ranks: Sequence[float] = DEFAULT.ranks
) -> tuple[float, int] | None:
    """The speed of schedule async with prepared outcomes, and how many; None if they are impossible or of unknown cost.

    `ranks`: see Lookahead.
    """
    if not machine.branch_s or machine.latency_s:
        return None
    guesses = constant(acceptance)
    found = foresee(machine, Schedule.ASYNC, guesses, n_max, _N_TOKENS, branches=None, ranks=ranks)
    return min(most_rate(machine, acceptance, n_max), found.rate), found.n_branches


def most_rate(machine: Machine, acceptance: float, n_max: int) -> float:
    """The limit of all schedules, in tokens/s: sequential ones have other costs than concurrent ones."""
    n = n_max + 1
    return max(
        forecast.limit(machine.target_s[:n], machine.draft_s, acceptance),
        forecast.limit(machine.beside_target_s[:n], machine.beside_draft_s, acceptance),
    )


def render(
    machine: Machine,
    acceptance: float,
    rates: dict[Schedule, float],
    n_max: int,
    prepared: tuple[float, int] | None = None,
) -> list[str]:
    """The predicted `rates` and what prepare() found as a table, with the settings that reach them."""
    sync = _sequential(machine, acceptance, n_max)
    both = _concurrent(machine, acceptance, n_max)
    drafts = f"draft {sync.n_verify}, then verify" if sync.n_verify else "no drafting"
    rows = [
        ("plain", rates[Schedule.OFF], "the target alone"),
        ("sequential", rates[Schedule.SYNC], drafts),
        ("concurrent", rates[Schedule.ASYNC], f"wait for {both.n_wait}, verify up to {both.n_verify}"),
        *([("prepared", prepared[0], f"prepare {prepared[1] or 'no'} outcomes")] if prepared else []),
        ("limit", most_rate(machine, acceptance, n_max), "min(1/t_d, E/T(k+1))"),
    ]
    plain = rates[Schedule.OFF]
    lines = [f"{name:<13}{rate:8.2f} tokens/s  {rate / plain:5.2f}×   {words}" for name, rate, words in rows]
    best = fastest(rates | {Schedule.ASYNC: max(rates[Schedule.ASYNC], prepared[0])} if prepared else rates)
    return [*lines, f"best: --schedule {best.value}{sufficient(machine, acceptance, best, n_max)}"]


def fastest(rates: dict[Schedule, float]) -> Schedule:
    """The schedule with the highest rate; of equal ones, the target alone."""
    return max(rates, key=lambda schedule: (round(rates[schedule] / rates[Schedule.OFF], 6), schedule is Schedule.OFF))


def sufficient(machine: Machine, acceptance: float, schedule: Schedule, n_max: int) -> str:
    """The smallest --draft within 1 % of the best for this schedule, in words."""
    if schedule is Schedule.OFF:
        return ""
    sizes = range(1, n_max + 1)
    settings = _sequential if schedule is Schedule.SYNC else _concurrent
    rates = [settings(machine, acceptance, k).rate for k in sizes]
    enough = next(k for k, rate in zip(sizes, rates, strict=True) if rate >= 0.99 * max(rates))
    return f"; --draft {enough} is sufficient"


def _sequential(machine: Machine, acceptance: float, n_max: int) -> Forecast:
    return forecast.taking_turns(machine.target_s[: n_max + 1], machine.draft_s, acceptance, machine.latency_s)


def _concurrent(machine: Machine, acceptance: float, n_max: int) -> Forecast:
    draft_s = machine.beside_draft_s
    latency_s = machine.latency_s + (0.0 if machine.aborts else draft_s / 2)
    return forecast.overlapped(machine.beside_target_s[: n_max + 1], draft_s, acceptance, 2 * n_max, latency_s)


class _Inputs(NamedTuple):
    machine: Machine
    acceptance: float
    ranks: Sequence[float] = DEFAULT.ranks


class _Known(NamedTuple):
    """Times in ms, of the target by batch size and of the draft by sequences, alone and concurrent."""

    target: Times | None = None
    draft: Times | None = None
    beside_target: Times | None = None
    beside_draft: Times | None = None
    acceptance: float | None = None
    ranks: Sequence[float] = DEFAULT.ranks


def _inputs(options: PlanOptions) -> _Inputs:
    if options.target_ms and options.table:
        raise UsageError("--target-ms and --table both give the target's times: use only one")
    known = _read_statistics(options.stats)
    if options.target_ms or options.table:
        times = read_table(options.table) if options.table else _parse_times(options.target_ms or "", "--target-ms")
        known = known._replace(target=times, beside_target=times)
    if options.draft_ms is not None:
        times = _parse_times(options.draft_ms, "--draft-ms")
        known = known._replace(draft=times, beside_draft=times)
    accept = known.acceptance if options.accept is None else options.accept
    latency_ms = options.latency_ms or 0.0
    if not 0 <= latency_ms <= _MOST_MS:
        raise UsageError(f"--latency-ms must be between 0 and {_MOST_MS:g}, not {latency_ms:g}")
    machine = _machine_of(options) if options.machine else _assembled(known)
    if machine is None or accept is None:
        raise UsageError(
            "missing values: add --target-ms or --table, --draft-ms and --accept, or --machine and --accept, "
            "or --json of a run"
        )
    if not 0 <= accept <= 1:
        raise UsageError(f"--accept must be between 0 and 1, not {accept:g}")
    if latency_ms:
        machine = replace(machine, latency_s=latency_ms / 1000)
    return _Inputs(machine, accept, known.ranks)


def _machine_of(options: PlanOptions) -> Machine:
    if options.target_ms or options.table or options.draft_ms:
        raise UsageError("--machine has all times: remove --target-ms, --table and --draft-ms")
    pair = read_pair(options.machine or "", MAX_DRAFT)
    if pair.assumed:
        say(f"assumed, not measured: {', '.join(pair.assumed)}")
    return pair.machine


def _assembled(known: _Known) -> Machine | None:
    if not known.target or not known.beside_target or not known.draft or not known.beside_draft:
        return None
    branch_s = _curve(known.beside_draft, MAX_BRANCHES + 1) if len(known.beside_draft) > 1 else []
    return Machine(
        _curve(known.target),
        known.draft[1] / 1000,
        _curve(known.beside_target),
        known.beside_draft[1] / 1000,
        branch_s=branch_s,
    )


def _parse_times(text: str, option: str) -> Times:
    """`490`, or `1:490,2:495,8:650`. Raises UsageError."""
    try:
        pairs = [pair.split(":") if ":" in pair else ("1", pair) for pair in text.replace(" ", "").split(",")]
        times = {int(n): float(ms) for n, ms in pairs}
        if len(times) < len(pairs):
            raise ValueError("a size is given twice")
        return _checked(times)
    except ValueError:
        raise UsageError(f"{option} must have the form 490 or 1:490,2:495,8:650, not {text!r}") from None


def read_table(path: Path) -> Times:
    """Lines of `n ms` or `n,ms`; comments with # and a heading are skipped. Raises UsageError."""
    try:
        lines = [line.replace(",", " ").split() for line in read_path(path, MIB).decode().splitlines()]
        return _checked({int(words[0]): float(words[1]) for words in lines if words and words[0].isdecimal()})
    except OSError as error:
        raise UsageError(f"--table {path}: {error.strerror}") from error
    except (ValueError, IndexError):
        raise UsageError(f"--table {path}: each line must have a batch size and a time in ms, such as: 1 490") from None


def _read_statistics(path: Path | None) -> _Known:
    """What is known from a run. Raises UsageError."""
    if path is None:
        return _Known()
    try:
        policy: dict[str, Any] = json.loads(read_path(path, _MAX_STATISTICS))["policy"]
        if policy.get("schedules") == ["off"]:
            raise KeyError("there was no draft")
        curves, drafts = ([policy[name][key] for key in ("alone", "beside")] for name in ("curve_ms", "draft_ms"))
        if None in (*curves, *drafts):
            raise UsageError(f"--json {path}: too few measurements: use a longer run")
        times, concurrent = (_checked({n: float(ms) for n, ms in enumerate(curve, 1)}) for curve in curves)
        draft_ms, concurrent_draft_ms = (_checked({1: float(ms)}) for ms in drafts)
        accept, ranks = float(policy["acceptance"]), DEFAULT.ranks
        if by_sequences := policy.get("draft_ms_by_sequences"):  # earlier versions had none
            concurrent_draft_ms = _checked({n: float(ms) for n, ms in enumerate(by_sequences, 1)})
            ranks = tuple(min(max(float(share), 0.0), 1.0) for share in policy["ranks"])
        return _Known(times, draft_ms, concurrent, concurrent_draft_ms, accept, ranks)
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise UsageError(f"--json {path}: not the statistics of a run with a draft") from None


def _checked(times: Times) -> Times:
    if 1 not in times or not all(1 <= n <= _MOST_TOKENS and _LEAST_MS <= ms <= _MOST_MS for n, ms in times.items()):
        raise ValueError("times")
    return times


def _curve(times: Times, n: int = MAX_DRAFT + 1) -> list[float]:
    """Times for 1 to `n` in seconds: interpolated linearly, and extrapolated with the last slope."""
    known, sizes = sorted(times), np.arange(1, n + 1)
    found = np.interp(sizes, known, [times[n] for n in known])
    if len(known) > 1:
        slope = max(0.0, (times[known[-1]] - times[known[-2]]) / (known[-1] - known[-2]))
        found = found + slope * np.maximum(0, sizes - known[-1])
    return [float(ms) / 1000 for ms in found]

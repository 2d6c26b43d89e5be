"""`duo plan`: predicts the speed with a draft from decode times, for any hardware."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duo.cli.options.by_command import MAX_DRAFT, PlanOptions
from duo.cli.terminal.console import say
from duo.config import MAX_BRANCHES
from duo.diagnose.machine_file import read_pair
from duo.errors import UsageError
from duo.models.storage import MIB, read_path
from duo.spec import forecast
from duo.spec.constants import DEFAULT
from duo.spec.forecast import Forecast
from duo.spec.pair import Machine, PairModel
from duo.spec.schedule import Schedule, fastest

_MAX_STATISTICS = 64 * MIB
_LEAST_MS, _MOST_MS = 1e-6, 1e9  # times that a decode can take
_MOST_TOKENS = 2**31  # in a batch

_SIZES = (1, 2, 4, 5, 8)  # of batches that are shown

Times = dict[int, float]  # ms by batch size


@dataclass(frozen=True, slots=True)
class Prospects:
    """What a pair can reach in each schedule."""

    found: dict[Schedule, Forecast]
    prepared: Forecast | None  # schedule async with prepared outcomes; None: impossible, or of unknown cost
    limit: float  # of all schedules, in tokens/s
    enough: int  # the smallest --draft within 1 % of the best

    @property
    def rates(self) -> dict[Schedule, float]:
        """The rate of each schedule in tokens/s, with prepared outcomes where they are faster."""
        rates = {schedule: found.rate for schedule, found in self.found.items()}
        if self.prepared is not None:
            rates[Schedule.ASYNC] = max(rates[Schedule.ASYNC], self.prepared.rate)
        return rates

    @property
    def best(self) -> Schedule:
        """The fastest schedule."""
        return fastest(self.rates)


def plan(options: PlanOptions) -> int:
    """Print predictions. Returns the exit status. Raises UsageError."""
    found = _inputs(options)
    machine, acceptance = found.machine, found.acceptance
    pair = informed(machine, acceptance, options.draft, found.ranks)
    times = ", ".join(f"{1000 * machine.target_s[n - 1]:.4g}" for n in _SIZES)
    beyond = f" (assumed beyond {found.n_known})" if found.n_known < options.draft + 1 else ""
    say(
        f"target {times} ms for batches of {', '.join(map(str, _SIZES))}{beyond}; "
        f"draft {1000 * machine.draft_s:.4g} ms per token, {1000 * pair.alone.pair_time():.4g} ms for two"
        f"{'' if machine.pair_s else ' (assumed)'}; {100 * acceptance:.0f} % accepted"
    )
    prospects = foretell(pair, constant=True, prepares=bool(machine.branch_s) and not machine.latency_s)
    print("\n".join(render(prospects)))  # noqa: T201 - the output
    return 0


def predict(machine: Machine, acceptance: float, n_max: int) -> dict[Schedule, float]:
    """The forecast of each schedule in tokens/s."""
    found = informed(machine, acceptance, n_max).forecasts(constant=True)
    return {schedule: each.rate for schedule, each in found.items()}


def informed(machine: Machine, acceptance: float, n_max: int, ranks: Sequence[float] = DEFAULT.ranks) -> PairModel:
    """A pair with the times of `machine`, each of whose candidates is accepted with the same probability.

    `ranks`: see Lookahead.
    """
    pair = PairModel(n_max, 2 * n_max, separate_devices=True, branches=None, aborts=machine.aborts)
    pair.learn_machine(machine)
    state = pair.calibration.state()
    same = len(state["accepted"]) * [acceptance]
    pair.calibration.restore(
        state | {"accepted": same, "mean": acceptance, "ranks": list(ranks), "scored": DEFAULT.texts}
    )
    return pair


def foretell(pair: PairModel, *, constant: bool, prepares: bool) -> Prospects:
    """The prospects of a pair whose costs are known. `prepares`: whether the draft may prepare outcomes."""
    pair.choose_branches(allowed=False)
    found = pair.forecasts(constant=constant)
    prepared = None
    if prepares:
        pair.choose_branches(allowed=True)
        prepared = pair.forecasts(constant=constant)[Schedule.ASYNC]
    n, acceptance = pair.n_max + 1, pair.calibration.mean
    limits = (forecast.limit(c.curve(n), c.draft_s, acceptance) for c in (pair.alone, pair.concurrent))
    # Bins of confidence may be worth a little more than their mean, which is all that a limit knows.
    limit = max(*limits, *(each.rate for each in found.values()), prepared.rate if prepared else 0.0)
    prospects = Prospects(found, prepared, limit, pair.n_max)
    return replace(prospects, enough=_sufficient(pair, prospects.best, constant=constant))


def _sufficient(pair: PairModel, schedule: Schedule, *, constant: bool) -> int:
    """The smallest --draft within 1 % of the best for this schedule."""
    rates = []
    for n in range(1, pair.n_max + 1):
        limited = copy(pair)
        limited.n_max, limited.n_ahead = n, 2 * n
        rates.append(limited.forecasts(constant=constant)[schedule].rate)
    return next(n for n, rate in enumerate(rates, 1) if rate >= 0.99 * max(rates))


def render(prospects: Prospects) -> list[str]:
    """A table, with the settings that reach each rate."""
    off, sync, both = (prospects.found[each] for each in (Schedule.OFF, Schedule.SYNC, Schedule.ASYNC))
    prepared = prospects.prepared
    rows = [
        ("plain", off.rate, "the target alone"),
        ("sequential", sync.rate, f"draft {sync.n_verify}, then verify" if sync.n_verify else "no drafting"),
        ("concurrent", both.rate, f"wait for {both.n_wait}, verify up to {both.n_verify}"),
        *([("prepared", prepared.rate, f"prepare {prepared.n_branches or 'no'} outcomes")] if prepared else []),
        ("limit", prospects.limit, "min(1/t_d, E/T(k+1))"),
    ]
    lines = [f"{name:<13}{rate:8.2f} tokens/s  {rate / off.rate:5.2f}×   {words}" for name, rate, words in rows]
    return [*lines, f"best: --schedule {prospects.best.value}{sufficient(prospects)}"]


def sufficient(prospects: Prospects) -> str:
    """The smallest --draft that is sufficient, in words."""
    return "" if prospects.best is Schedule.OFF else f"; --draft {prospects.enough} is sufficient"


class _Inputs(NamedTuple):
    machine: Machine
    acceptance: float
    ranks: Sequence[float] = DEFAULT.ranks
    n_known: int = MAX_DRAFT + 1  # the largest batch of the target whose time is given


class _Known(NamedTuple):
    """Times in ms, of the target by batch size and of the draft by sequences, alone and concurrent."""

    target: Times | None = None
    draft: Times | None = None
    beside_target: Times | None = None
    beside_draft: Times | None = None
    pair_ms: float | None = None  # the draft's for two tokens in one decode
    acceptance: float | None = None
    ranks: Sequence[float] = DEFAULT.ranks
    n_known: int = MAX_DRAFT + 1  # see _Inputs


def _inputs(options: PlanOptions) -> _Inputs:
    if options.target_ms and options.table:
        raise UsageError("--target-ms and --table both give the target's times: use only one")
    known = _read_statistics(options.stats)
    if options.target_ms or options.table:
        times = read_table(options.table) if options.table else _parse_times(options.target_ms or "", "--target-ms")
        n_known = max(times) if len(times) > 1 else MAX_DRAFT + 1
        known = known._replace(target=times, beside_target=times, n_known=n_known)
    if options.draft_ms is not None:
        times = _parse_times(options.draft_ms, "--draft-ms")
        known = known._replace(draft=times, beside_draft=times, pair_ms=None)
    if options.draft_pair_ms is not None:
        if not _LEAST_MS <= options.draft_pair_ms <= _MOST_MS:
            raise UsageError(f"--draft-pair-ms must be a time in ms, not {options.draft_pair_ms:g}")
        known = known._replace(pair_ms=options.draft_pair_ms)
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
    return _Inputs(machine, accept, known.ranks, MAX_DRAFT + 1 if options.machine else known.n_known)


def _machine_of(options: PlanOptions) -> Machine:
    if options.target_ms or options.table or options.draft_ms or options.draft_pair_ms:
        raise UsageError("--machine has all times: remove --target-ms, --table, --draft-ms and --draft-pair-ms")
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
        pair_s=(known.pair_ms or 0.0) / 1000,
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
        pair_ms = policy.get("pair_ms")
        pair = _checked({1: float(pair_ms)})[1] if pair_ms is not None else None
        if by_sequences := policy.get("draft_ms_by_sequences"):  # earlier versions had none
            concurrent_draft_ms = _checked({n: float(ms) for n, ms in enumerate(by_sequences, 1)})
            ranks = tuple(min(max(float(share), 0.0), 1.0) for share in policy["ranks"])
        # Earlier versions did not say which sizes were measured.
        n_known = int(max((policy.get("measured") or {}).get("alone") or times))
        return _Known(times, draft_ms, concurrent, concurrent_draft_ms, pair, accept, ranks, n_known)
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

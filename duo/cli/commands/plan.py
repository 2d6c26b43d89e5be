"""`duo plan`: what a draft would bring on hardware that is not here, from figures alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from duo.cli.options.declare import HelpOpt
from duo.cli.terminal.console import say
from duo.config import AUTO_DRAFT
from duo.errors import UsageError
from duo.spec import forecast
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine, constant, replay

_N_TOKENS = 20_000
_LONGEST = 16

Times = dict[int, float]  # ms by tokens in a batch


def parse_times(text: str) -> Times:
    """`490`, or `1:490,2:495,8:650`: ms for so many tokens at once. Raises UsageError."""
    try:
        pairs = [pair.split(":") if ":" in pair else ("1", pair) for pair in text.replace(" ", "").split(",")]
        times = {int(n): float(ms) for n, ms in pairs}
        if len(times) < len(pairs):
            raise ValueError("a size is given twice")
        return _checked(times)
    except ValueError:
        raise UsageError(f"--target-ms takes 490 or 1:490,2:495,8:650, not {text!r}") from None


def read_table(path: Path) -> Times:
    """Lines of `n ms` or `n,ms`; lines that begin with # and a heading are skipped. Raises UsageError."""
    try:
        lines = [line.replace(",", " ").split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--table {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from error
    try:
        return _checked({int(words[0]): float(words[1]) for words in lines if words and words[0].isdecimal()})
    except (ValueError, IndexError):
        raise UsageError(f"--table {path}: each line is the tokens at once and their ms, for example: 1 490") from None


def _checked(times: Times) -> Times:
    if 1 not in times or any(n < 1 or not 0 < ms < float("inf") for n, ms in times.items()):
        raise ValueError("times")
    return times


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of `duo plan`."""

    target_ms: Annotated[
        str | None,
        typer.Option("--target-ms", metavar="MS|N:MS,…", help="The target's time for one token, or for each of several "
                     "batch sizes. One number alone means that more tokens at once cost the same."),
    ] = None  # fmt: skip
    draft_ms: Annotated[float | None, typer.Option("--draft-ms", metavar="MS", help="The draft's time per token.")] = (
        None
    )
    accept: Annotated[
        float | None,
        typer.Option("--accept", metavar="SHARE", help="How often a guess is accepted if all before it are, 0 to 1."),
    ] = None
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="The target's times, a line per size: tokens and ms.")
    ] = None
    stats: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Take all figures from the --json statistics of a run."),
    ] = None
    draft: Annotated[
        int, typer.Option("--draft", metavar="N", min=1, max=_LONGEST, help="Most candidates verified at once.")
    ] = AUTO_DRAFT
    help: HelpOpt = False


def plan(options: PlanOptions) -> int:
    """Print predictions. Returns the exit status. Raises UsageError."""
    machine, acceptance = _figures(options)
    say(_given(machine, acceptance))
    rates = predict(machine, acceptance, options.draft)
    for line in render(machine, acceptance, rates, options.draft):
        print(line)  # noqa: T201 - this is what was asked for
    return 0


def render(machine: Machine, acceptance: float, rates: dict[Schedule, float], n_max: int) -> list[str]:
    """The predicted `rates` as lines of a table, with the settings that reach them."""
    turns = forecast.taking_turns(machine.target_s[: n_max + 1], machine.draft_s, acceptance)
    beside = machine.beside_target_s[: n_max + 1], machine.beside_draft_s, acceptance
    both = forecast.overlapped(*beside, 2 * n_max)
    rows = [
        ("plain", rates[Schedule.OFF], "the target alone"),
        (
            "taking turns",
            rates[Schedule.SYNC],
            f"draft {turns.n_verify}, then verify" if turns.n_verify else "no drafts",
        ),
        ("overlapped", rates[Schedule.ASYNC], f"wait for {both.n_wait}, verify up to {both.n_verify}"),
        ("limit", forecast.limit(*beside), "min(1/t_d, E/T(k+1))"),
    ]
    plain = rates[Schedule.OFF]
    lines = [f"{name:<13}{rate:8.2f} tokens/s  {rate / plain:5.2f}×   {words}" for name, rate, words in rows]
    best = max(rates, key=rates.__getitem__)
    return [*lines, f"best: --schedule {best.value}{gain_stops(machine, acceptance, best, n_max)}"]


def predict(machine: Machine, acceptance: float, n_max: int) -> dict[Schedule, float]:
    """Tokens/s of each schedule, by replaying the policy."""
    return {
        schedule: replay(Policy(n_max, 2 * n_max, (schedule,)), machine, constant(acceptance), _N_TOKENS).rate
        for schedule in Schedule
    }


def gain_stops(machine: Machine, acceptance: float, schedule: Schedule, n_max: int) -> str:
    """The smallest --draft that is within a hundredth of the best in this schedule, in words."""
    if schedule is Schedule.OFF:
        return ""
    sizes = range(1, n_max + 1)
    if schedule is Schedule.SYNC:
        rates = [forecast.taking_turns(machine.target_s[: k + 1], machine.draft_s, acceptance).rate for k in sizes]
    else:
        times, draft_s = machine.beside_target_s, machine.beside_draft_s
        rates = [forecast.overlapped(times[: k + 1], draft_s, acceptance, 2 * k).rate for k in sizes]
    enough = next(k for k, rate in zip(sizes, rates, strict=True) if rate >= 0.99 * max(rates))
    return f"; the gain stops at --draft {enough}"


def curve(times: Times) -> list[float]:
    """T(1) to T(17) in seconds: straight between the sizes that are known, and on as it was beyond them."""
    known = sorted(times)
    found = np.interp(range(1, _LONGEST + 2), known, [times[n] for n in known])
    if len(known) > 1:
        slope = max(0.0, (times[known[-1]] - times[known[-2]]) / (known[-1] - known[-2]))
        beyond = np.maximum(0, np.arange(1, _LONGEST + 2) - known[-1])
        found = found + slope * beyond
    return [float(ms) / 1000 for ms in found]


def _figures(options: PlanOptions) -> tuple[Machine, float]:
    if options.target_ms and options.table:
        raise UsageError("--target-ms and --table both give the target's times: leave one out")
    times, beside, draft_ms, beside_draft_ms, accept = _statistics(options.stats)
    if options.target_ms or options.table:
        times = beside = read_table(options.table) if options.table else parse_times(options.target_ms or "")
    if options.draft_ms is not None:
        draft_ms = beside_draft_ms = options.draft_ms
    accept = accept if options.accept is None else options.accept
    if not times or not beside or draft_ms is None or beside_draft_ms is None or accept is None:
        raise UsageError(
            "needs --target-ms or --table, --draft-ms and --accept, or --json with the statistics of a run"
        )
    if not 0 <= accept <= 1 or not 0 < draft_ms < float("inf"):
        raise UsageError("--accept is a share from 0 to 1, --draft-ms a time above 0")
    return Machine(curve(times), draft_ms / 1000, curve(beside), beside_draft_ms / 1000), accept


def _statistics(path: Path | None) -> tuple[Times, Times, float | None, float | None, float | None]:
    """What a run has learned. Raises UsageError."""
    if path is None:
        return {}, {}, None, None, None
    try:
        policy: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["policy"]
        curves = [policy["curve_ms"][condition] for condition in ("alone", "beside")]
        draft = [policy["draft_ms"][condition] for condition in ("alone", "beside")]
        if None in (*curves, *draft):
            raise UsageError(f"--json {path}: this run has learned too little: it needs more tokens")
        times, beside = (_checked({n: float(ms) for n, ms in enumerate(curve, 1)}) for curve in curves)
        figures = [float(figure) for figure in (*draft, policy["acceptance"])]
        if min(figures[:2]) <= 0:
            raise ValueError("no time")
        return times, beside, figures[0], figures[1], figures[2]
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"--json {path}: not the statistics of a run with a draft") from None


def _given(machine: Machine, acceptance: float) -> str:
    sizes = [1, 2, 4, 5, 8]
    times = ", ".join(f"{1000 * machine.target_s[n - 1]:.4g}" for n in sizes)
    return (
        f"target {times} ms for {', '.join(map(str, sizes))} tokens at once; "
        f"draft {1000 * machine.draft_s:.4g} ms per token; {100 * acceptance:.0f} % accepted"
    )

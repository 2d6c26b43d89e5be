"""`duo plan`: what a draft would bring on hardware that is not here, from figures alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from duo.cli.configs import AUTO_DRAFT
from duo.cli.options import HelpOpt
from duo.cli.output import say
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
        return _checked({int(n): float(ms) for n, ms in pairs})
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
    for line in render(machine, acceptance, options.draft):
        print(line)  # noqa: T201 - this is what was asked for
    return 0


def render(machine: Machine, acceptance: float, n_max: int) -> list[str]:
    """The predictions as lines of a table."""
    rates = predict(machine, acceptance, n_max)
    plain, turns = (
        rates[Schedule.OFF],
        forecast.taking_turns(machine.target_s[: n_max + 1], machine.draft_s, acceptance),
    )
    beside = machine.beside_target_s[: n_max + 1], machine.beside_draft_s, acceptance
    both = forecast.overlapped(*beside, 2 * n_max)
    settings = {
        Schedule.OFF: "the target alone",
        Schedule.SYNC: f"draft {turns.n_verify}, then verify" if turns.n_verify else "do not draft",
        Schedule.ASYNC: f"wait for {both.n_wait}, verify up to {both.n_verify}",
    }
    names = {Schedule.OFF: "plain", Schedule.SYNC: "taking turns", Schedule.ASYNC: "overlapped"}
    lines = [
        f"{names[schedule]:<13}{rates[schedule]:8.2f} tokens/s  {rates[schedule] / plain:5.2f}×   {settings[schedule]}"
        for schedule in (Schedule.OFF, Schedule.SYNC, Schedule.ASYNC)
    ]
    limit = forecast.limit(*beside)
    lines.append(f"{'limit':<13}{limit:8.2f} tokens/s  {limit / plain:5.2f}×   min(1/t_d, E/T(k+1))")
    best = max(rates, key=rates.__getitem__)
    lines.append(f"best: --schedule {best.value}" + (f", {gain_stops(machine, acceptance)}" if best != "off" else ""))
    return lines


def predict(machine: Machine, acceptance: float, n_max: int) -> dict[Schedule, float]:
    """Tokens/s of each schedule, by replaying the policy."""
    return {
        schedule: replay(Policy(n_max, 2 * n_max, (schedule,)), machine, constant(acceptance), _N_TOKENS).rate
        for schedule in Schedule
    }


def gain_stops(machine: Machine, acceptance: float) -> str:
    """The smallest --draft that is within a hundredth of the best."""
    rates = [
        max(
            forecast.taking_turns(machine.target_s[: k + 1], machine.draft_s, acceptance).rate,
            forecast.overlapped(machine.beside_target_s[: k + 1], machine.beside_draft_s, acceptance, 2 * k).rate,
        )
        for k in range(1, _LONGEST + 1)
    ]
    enough = next(k for k, rate in enumerate(rates, 1) if rate >= 0.99 * max(rates))
    return f"the gain stops at --draft {enough}"


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
        times, beside = ({int(n): float(ms) for n, ms in policy["target_ms"][at].items()} for at in ("alone", "beside"))
        draft = policy["draft_ms"]
        return times or beside, beside or times, draft["alone"], draft["beside"], policy["acceptance"]
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

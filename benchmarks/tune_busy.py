"""Profiles of a busy machine: `duo tune` and runs of `duo`, alternately alone and beside busy loops."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.contestants import Setup
from benchmarks.process import Child, run_process
from benchmarks.runner import Outcome, Scenario, note, verdict
from duo.bench.programs import last_line
from duo.cli.terminal.bench_table import markdown_table
from duo.engine.cores import usable_cores

_FIRST = ("T(1) alone", "t_d alone")
_LOOPS = 4  # for each core
_MOST_OFF = 0.25  # of a time, relative to that of an idle machine
_MOST_IDLE_S, _MOST_BUSY_S = 30.0, 120.0
_PAUSE_S = 2.0  # after which the loops compute, or no longer do
_RATE = re.compile(r"^(plain|sequential|concurrent|limit) +([\d.]+) tokens/s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Try:
    """One command and the profile that it has left."""

    command: str
    is_busy: bool
    status: int
    seconds: float
    times: dict[str, float]  # in seconds, by what was measured; empty: none were kept
    over: int  # forecasts that exceed the limit
    said: str


class TuneBusy(Scenario):
    """Each round runs both commands on the idle machine, and again beside busy loops."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        tries, complete = list[Try](), True
        try:
            for i in range(setup.n_rounds):
                for is_busy in (False, True):
                    with ExitStack() as stack:
                        for _ in range(_LOOPS * usable_cores() if is_busy else 0):
                            stack.enter_context(Child([sys.executable, "-c", "while True: pass"]))
                        time.sleep(_PAUSE_S)
                        for command in ("tune", "run"):
                            tries.append(_try(setup, command, i, is_busy=is_busy))
                            note(f"{setup.pair}: {tries[-1]}")
        except KeyboardInterrupt:
            complete = False
        return _outcome(tries, complete)


def _try(setup: Setup, command: str, number: int, *, is_busy: bool) -> Try:
    """Run a command with a config directory of its own."""
    models = ["-m", str(setup.target), "-md", str(setup.draft)]
    words = ["tune", *models] if command == "tune" else [*models, "-p", "Once", "-n", str(setup.n_tokens)]
    name = f"{command}-{number}-{is_busy}"
    cost = run_process([*setup.duo, *words], setup.config(name))
    profiles = list((setup.folder / name).rglob("profiles/*+*.json"))  # the target alone has one, too
    profile = json.loads(profiles[0].read_text(encoding="utf-8")) if profiles else {}
    rates = {name: float(rate) for name, rate in _RATE.findall(cost.stdout)}
    over = sum(rate > rates["limit"] for rate in rates.values())
    return Try(command, is_busy, cost.returncode, cost.wall_s, _times(profile), over, last_line(cost.stderr))


def _times(profile: dict[str, Any]) -> dict[str, float]:
    """What a profile has, with the numbers of threads on which the times depend, where it has those."""
    policy, threads = profile.get("policy", {}), profile.get("threads")
    on = {"alone": f" on {threads['target']}", "beside": f" on {threads['beside']}"} if threads else {}
    found = {}
    for condition, costs in zip(("alone", "beside"), policy["costs"]["0"], strict=True) if policy else ():
        for n, (seconds, _) in costs["target_s"].items():
            found[f"T({n}) {condition}{on.get(condition, '')}"] = seconds
        if drafts := [seconds for seconds, _ in costs["draft_s"].values()]:
            found[f"t_d {condition}"] = min(drafts)
    return found


def _outcome(tries: list[Try], complete: bool) -> Outcome:
    def kept(command: str, *, is_busy: bool) -> list[Try]:
        return [each for each in tries if (each.command, each.is_busy) == (command, is_busy) and each.times]

    idle = [each.times for each in kept("tune", is_busy=False)]
    names = sorted(set().union(*idle))
    reference = {name: median(times[name] for times in idle if name in times) for name in names}

    def off(each: Try) -> float:
        """The largest deviation from the idle machine; of a run, which does not tell its threads, of T(1) and t_d."""
        known = reference
        if each.command == "run":
            alone = {what: [s for name, s in reference.items() if name.startswith(what)] for what in _FIRST}
            known = {what: min(seconds) for what, seconds in alone.items() if seconds}
        return max((abs(s / known[name] - 1) for name, s in each.times.items() if name in known), default=0.0)

    lines, verdicts = [["command", "tries", "refused", "s, longest", "with times", "largest deviation"]], []
    for command in ("tune", "run"):
        for is_busy in (False, True):
            found = [each for each in tries if (each.command, each.is_busy) == (command, is_busy)]
            deviations = [off(each) for each in found if each.times]
            refused, longest_s = sum(each.status != 0 for each in found), max((e.seconds for e in found), default=0.0)
            cells = (f"{command}, {'busy' if is_busy else 'idle'}", len(found), refused, f"{longest_s:.0f}",
                     len(deviations), f"{100 * max(deviations, default=0.0):.0f} %")  # fmt: skip
            lines.append(list(map(str, cells)))
            if is_busy:
                wrong = sum(deviation > _MOST_OFF for deviation in deviations)
                verdicts.append(verdict(f"profiles off by more than 25 %, {command}", wrong, most=0))
            if command == "tune":
                most = _MOST_BUSY_S if is_busy else _MOST_IDLE_S
                verdicts.append(verdict(f"longest tune, busy: {is_busy}, s", longest_s, most=most))
    refused = sum(not e.times for e in tries if (e.command, e.is_busy) == ("tune", False))
    verdicts.append(verdict("forecasts over the limit", sum(each.over for each in tries), most=0))
    verdicts.append(verdict("refused or tentative on an idle machine", refused, most=0))
    document = {"reference_s": reference, "tries": [asdict(each) for each in tries], "complete": complete}
    return Outcome(markdown_table(lines), document, verdicts)

"""Profiles of a busy machine: `duo tune` and runs of `duo`, alternately alone and beside busy loops."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.contestants import Setup
from benchmarks.measure import Outcome, Scenario, Verdict, note
from duo.bench.process import Child, last_line, run_process
from duo.bench.statistics import Range
from duo.engine.cores import usable_cores

_LOOPS = 4  # for each core
_MOST_OFF = 0.25  # of a time, relative to that of an idle machine
_MOST_IDLE_S, _MOST_BUSY_S = 30.0, 120.0
_PAUSE_S = 2.0  # after which the loops compute, or no longer do
_RATE = re.compile(r"^(plain|sequential|concurrent|limit) +([\d.]+) tokens/s", re.MULTILINE)

Times = dict[str, float]  # in seconds, by what was measured


@dataclass(frozen=True, slots=True)
class Try:
    """One command and the profile that it has left."""

    command: str
    is_busy: bool
    status: int
    seconds: float
    times: Times  # empty: none were kept
    over: int  # forecasts that exceed the limit
    said: str

    def off(self, reference: Times) -> float:
        """The largest relative deviation of a time that both have."""
        return max((abs(s / reference[name] - 1) for name, s in self.times.items() if name in reference), default=0.0)


@dataclass(slots=True)
class Tries:
    """All of a pair."""

    all: list[Try] = field(default_factory=list)

    def of(self, command: str, *, is_busy: bool) -> list[Try]:
        """Those of one kind."""
        return [each for each in self.all if (each.command, each.is_busy) == (command, is_busy)]

    @property
    def reference(self) -> Times:
        """The medians of what `duo tune` has kept on the idle machine."""
        kept = [each.times for each in self.of("tune", is_busy=False)]
        return {name: median(t[name] for t in kept if name in t) for name in sorted(set().union(*kept))}


class TuneBusy(Scenario):
    """Each round runs both commands on the idle machine, and again beside busy loops."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        tries, complete = Tries(), True
        try:
            for i in range(setup.n_rounds):
                for is_busy in (False, True):
                    with ExitStack() as stack:
                        for _ in range(_LOOPS * usable_cores() if is_busy else 0):
                            stack.enter_context(Child([sys.executable, "-c", "while True: pass"]))
                        time.sleep(_PAUSE_S)
                        for command in ("tune", "run"):
                            tries.all.append(_try(setup, command, i, is_busy=is_busy))
                            note(_line(setup, tries.all[-1]))
        except KeyboardInterrupt:
            complete = False
        return Outcome(_table(tries), _document(tries) | {"complete": complete}, _verdicts(tries))


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
    return Try(command, is_busy, cost.status, cost.wall_s, _times(profile), over, last_line(cost.stderr))


def _times(profile: dict[str, Any]) -> Times:
    """What a profile has, with the numbers of threads on which the times depend, where it has those."""
    policy, threads = profile.get("policy", {}), profile.get("threads")
    on = {"alone": f" on {threads['target']}", "beside": f" on {threads['beside']}"} if threads else {}
    found = {}
    for condition, costs in zip(("alone", "beside"), policy["costs"]["0"], strict=True) if policy else ():
        for n, (seconds, _) in costs["target_s"].items():
            found[f"T({n}) {condition}{on.get(condition, '')}"] = seconds
        drafts = [seconds for seconds, _ in costs["draft_s"].values()]
        if drafts:
            found[f"t_d {condition}"] = min(drafts)
    return found


def _line(setup: Setup, each: Try) -> str:
    where = "beside busy loops" if each.is_busy else "alone"
    kept = f"{len(each.times)} times kept" if each.times else "none kept"
    return f"{setup.pair}: duo {each.command} {where}: {each.seconds:.0f} s, status {each.status}, {kept}: {each.said}"


def _table(tries: Tries) -> list[str]:
    lines = ["| command | machine | tries | refused | s, longest | profiles with times | largest deviation |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for command in ("tune", "run"):
        for is_busy in (False, True):
            found = tries.of(command, is_busy=is_busy)
            kept = [each for each in found if each.times]
            off = f"{100 * max(_off(kept, tries)):.0f} %" if kept else ""
            cells = (
                command, "busy" if is_busy else "idle", len(found), sum(each.status != 0 for each in found),
                f"{max((each.seconds for each in found), default=0.0):.0f}", len(kept), off,
            )  # fmt: skip
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _off(found: Sequence[Try], tries: Tries) -> list[float]:
    """The deviations from the idle machine. Of a run, whose threads its profile does not tell, of T(1) and t_d only."""
    reference = tries.reference
    alone = {
        what: [s for name, s in reference.items() if name.startswith(what)] for what in ("T(1) alone", "t_d alone")
    }
    first = {what: min(seconds) for what, seconds in alone.items() if seconds}
    return [each.off(reference if each.command == "tune" else first) for each in found]


def _verdicts(tries: Tries) -> list[Verdict]:
    def zero(name: str, n: float, most: float = 0) -> Verdict:
        return Verdict(name, Range(n, None, None), most=most)

    def seconds(*, is_busy: bool) -> float:
        return max((each.seconds for each in tries.of("tune", is_busy=is_busy)), default=0.0)

    found = []
    for command in ("tune", "run"):
        busy = [each for each in tries.of(command, is_busy=True) if each.times]
        wrong = sum(off > _MOST_OFF for off in _off(busy, tries))
        found.append(zero(f"profiles of a busy machine that are off by more than 25 %, {command}", wrong))
    refused = sum(not each.times for each in tries.of("tune", is_busy=False))
    return [
        *found,
        zero("forecasts over the limit", sum(each.over for each in tries.all)),
        zero("refused or tentative on an idle machine", refused),
        zero("longest tune on an idle machine, s", seconds(is_busy=False), _MOST_IDLE_S),
        zero("longest tune on a busy machine, s", seconds(is_busy=True), _MOST_BUSY_S),
    ]


def _document(tries: Tries) -> dict[str, Any]:
    return {
        "reference_ms": {name: 1000 * seconds for name, seconds in tries.reference.items()},
        "tries": [
            {
                "command": each.command, "busy": each.is_busy, "status": each.status, "seconds": each.seconds,
                "times_ms": {name: 1000 * seconds for name, seconds in each.times.items()}, "said": each.said,
            }
            for each in tries.all
        ],
    }  # fmt: skip

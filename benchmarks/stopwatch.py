"""Compares the figures of `duo bench` with wall times of processes and the report of llama-completion."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.contestants import ALONE, Duo, Setup
from benchmarks.measure import Bar, Call, bench
from duo.bench.contestant import Contestant, Job, ParseError, Run
from duo.bench.peers import Program
from duo.bench.process import last_line, run_process
from duo.engine.cores import usable_cores

_FEW = 16  # tokens of the short run, whose time is subtracted: loading and prefill cancel out
_PROGRAM = "llama-completion"

BENCH_DUO, STOPPED_DUO = "duo bench: plain", "stopwatch: duo"
BENCH_PEER, PEER, STOPPED_PEER = f"duo bench: {_PROGRAM}", f"{_PROGRAM} itself", f"stopwatch: {_PROGRAM}"
BARS = tuple(
    Bar(figure, other, 0.97, 1.03)
    for figure, other in ((BENCH_DUO, STOPPED_DUO), (BENCH_PEER, PEER), (BENCH_PEER, STOPPED_PEER), (BENCH_DUO, PEER))
)


def contestants(setup: Setup) -> list[Contestant]:
    """Plain decoding on all cores, timed in each way."""
    duo = Duo("duo", ("--no-escape", *ALONE.split(), "-t", str(usable_cores())), setup.duo, setup.config("duo"))
    program = Program(_PROGRAM, setup.peers / _PROGRAM, usable_cores())
    return [
        Contestant(BENCH_DUO, _Bench(setup, "plain")),
        Contestant(STOPPED_DUO, _Stopwatch(duo.command)),
        Contestant(BENCH_PEER, _Bench(setup, _PROGRAM)),
        Contestant(PEER, program),
        Contestant(STOPPED_PEER, _Stopwatch(program.command)),
    ]


@dataclass(frozen=True, slots=True)
class _Bench:
    """A row of `duo bench`."""

    setup: Setup
    row: str

    def write(self, job: Job, stop: threading.Event) -> Run:  # noqa: ARG002 - a Writer
        programs = () if self.row == "plain" else (self.row,)
        call = Call("", ("plain",), ("-t", str(usable_cores())), programs=programs)
        found = bench(call, replace(self.setup, prompt_files=[job.prompt_file], n_rounds=1))
        (rate,) = (row["tokens_per_s"] for row in found["rows"] if row["mode"] == self.row)
        return Run(None, rate, found["runs"][0]["text"])


@dataclass(frozen=True, slots=True)
class _Stopwatch:
    """The wall time of a process minus that of a short run."""

    command: Callable[[Job], list[str]]

    def write(self, job: Job, stop: threading.Event) -> Run:
        costs = [run_process(self.command(replace(job, n_tokens=n)), stop=stop) for n in (job.n_tokens, _FEW)]
        for cost in costs:
            if cost.status:
                raise ParseError(f"exit status {cost.status}: {last_line(cost.stderr)}")
        return Run(None, (job.n_tokens - _FEW) / (costs[0].wall_s - costs[1].wall_s), costs[0].stdout)

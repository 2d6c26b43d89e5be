"""Measures drafting on another machine, each model with one core: a back beside a draft in a thread, and beside none.

python -m benchmarks.link [-r N] [-n N] [--pairs NAME…]; README.md has the protocol.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.backs import waiting_back, write_halves
from benchmarks.measure import git_commit
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.ratios import show
from duo.bench.facts import hardware
from duo.bench.process import run_process
from tests.process.link.proxy import Proxy
from tests.serving import BackProcess, LeadProcess

DELAY_S = 0.01  # one way

# What is compared: a figure over another one, and the least that it should be.
BARS = {
    "lead + back on loopback over a draft in a thread": ("loopback", "thread", 0.93),
    "lead + back through 10 ms over the lead alone": ("delayed", "alone", 1.10),
    "second half with a back that joins halfway over one from the start": ("joined", "second half", 0.95),
    "lead alone, seen by the client, over the command line": ("client", "plain", 0.97),
}


@dataclass(slots=True)
class Bench:
    """The programs, and what they reached: tokens/s by way and prompt."""

    target: Path
    draft: Path
    n_tokens: int
    duo: list[str]
    folder: Path
    found: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    longest_gap_s: float = 0.0

    def add(self, way: str, prompt: str, rate: float) -> None:
        self.found.setdefault(way, {}).setdefault(prompt, []).append(rate)

    def command_line(self, way: str, file: Path, *more: str) -> None:
        report = self.folder / "duo.json"
        command = [*self.duo, "-m", str(self.target), *more, "-t", "1", "-f", str(file), "-n", str(self.n_tokens)]
        cost = run_process([*command, "--ignore-eos", "--json", str(report)], {"DUO_CONFIG": str(self.folder / way)})
        if cost.status:
            raise SystemExit(cost.stderr)
        self.add(way, file.stem, json.loads(report.read_text())["generation"]["tokens_per_s"])

    def request(self, way: str, file: Path, lead: LeadProcess) -> None:
        stream = lead.stream(file.read_text(encoding="utf-8"), self.n_tokens)
        stream.finish()
        last = stream.events[-1]
        self.add(way, file.stem, last["timings"]["predicted_per_second"])
        if way == "alone":
            self.add("client", file.stem, (self.n_tokens - 1) / (stream.times[-1] - stream.times[0]))
        if way == "loopback":
            self.longest_gap_s = max(self.longest_gap_s, *(b - a for a, b in pairwise(stream.times)))

    def halves(self, file: Path, lead: LeadProcess, way: str, join: Callable[[], None]) -> None:
        """The rate of the second half; `join` is called at its beginning."""
        self.add(way, file.stem, write_halves(lead, file, self.n_tokens, join).second)


def run(bench: Bench, files: list[Path], repetitions: int) -> None:
    """All ways in turns."""
    with ExitStack() as stack:
        leads = {way: stack.enter_context(LeadProcess(bench.target)) for way in ("alone", "loopback", "delayed")}
        stack.enter_context(BackProcess(bench.draft, leads["loopback"].port)).wait_for("joined")
        proxy = stack.enter_context(Proxy(leads["delayed"].port, delay_s=DELAY_S))
        stack.enter_context(BackProcess(bench.draft, proxy.port)).wait_for("joined")
        for repetition in range(repetitions):
            for file in files:
                ways: list[Callable[[], None]] = [
                    partial(bench.command_line, "thread", file, "-md", str(bench.draft), "-td", "1"),
                    partial(bench.command_line, "plain", file),
                    *(partial(bench.request, way, file, lead) for way, lead in leads.items()),
                    partial(bench.halves, file, leads["loopback"], "second half", lambda: None),
                    partial(join_halfway, bench, file, leads["alone"]),
                ]
                for i in range(len(ways)):
                    print(
                        f"\r{repetition + 1}/{repetitions} {file.stem:<12} {i + 1}/{len(ways)}", end="", file=sys.stderr
                    )
                    ways[(i + repetition) % len(ways)]()
    print(file=sys.stderr)


def join_halfway(bench: Bench, file: Path, lead: LeadProcess) -> None:
    """A back that joins in the middle; it goes afterwards."""
    with waiting_back(bench.draft, lead, bench.folder) as join:
        bench.halves(file, lead, "joined", join)


def report(bench: Bench, pair: str) -> dict[str, object]:
    """Print the figures and the bars."""
    figures = show(bench.found, BARS, pair)
    print(f"  longest gap between two pieces with a back: {1000 * bench.longest_gap_s:.0f} ms")
    return {**figures, "longest_gap_s": bench.longest_gap_s}


def main() -> None:
    arguments = parser("link", (__doc__ or "").partition("\n")[0], n_tokens=256)
    arguments.add_argument("--pairs", nargs="+", default=["smollm2-f16", "smollm2-f32"], choices=PAIRS)
    options = arguments.parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    document: dict[str, object] = {"hardware": hardware(), **git_commit(), "load": quiet_enough()}
    for pair in options.pairs:
        target, draft = (make() for make in PAIRS[pair])
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(target, draft, options.n_tokens, options.duo, Path(folder))
            run(bench, files, options.repetitions)
        document[pair] = report(bench, pair)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Measures drafting on another machine, each model with one core: a back beside a draft in a thread, and beside none.

python -m benchmarks.link [-r N] [-n N] [--pairs NAME…]; README.md has the protocol.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import git_commit, hardware, run_process
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from tests.link.proxy import Proxy
from tests.serving import BackProcess, LeadProcess

DELAY_S = 0.01  # one way

# The back connects only when the file is there.
_GATE = """
import time
from pathlib import Path
from duo.link.back import Back
run = Back.run
def wait(self):
    while not Path({gate!r}).exists():
        time.sleep(0.002)
    run(self)
Back.run = wait
"""

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
        stream = lead.stream(file.read_text(encoding="utf-8"), self.n_tokens)
        half = self.n_tokens // 2
        while stream.n_tokens < half and stream.running:
            stream.wait_for_pieces(len(stream.times) + 1)
        began, n_before = time.monotonic(), stream.n_tokens
        join()
        stream.finish()
        self.add(way, file.stem, (self.n_tokens - n_before) / (stream.times[-1] - began))


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
    """A back that is loaded and joins in the middle; it goes afterwards."""
    gate = bench.folder / "gate"
    gate.unlink(missing_ok=True)
    with BackProcess(bench.draft, lead.port, before=_GATE.format(gate=str(gate))) as back:
        back.wait_for("drafts for")
        bench.halves(file, lead, "joined", gate.touch)
    gate.unlink()
    lead.wait_for("has gone", sum("has joined" in line for line in lead.lines))


def report(bench: Bench, pair: str) -> dict[str, object]:
    """Print the figures and the bars."""
    medians = {way: {p: statistics.median(rates) for p, rates in found.items()} for way, found in bench.found.items()}
    means = {way: statistics.geometric_mean(rates.values()) for way, rates in medians.items()}
    print(f"\n{pair}, one core each, tokens/s, geometric mean of {len(next(iter(medians.values())))} prompts")
    for way, mean in means.items():
        print(f"  {way:<12} {mean:7.1f}   " + " ".join(f"{rate:6.1f}" for rate in medians[way].values()))
    ratios = {}
    for name, (way, over, least) in BARS.items():
        ratios[name] = means[way] / means[over]
        print(f"  {name:<68} {ratios[name]:.3f}  at least {least} {'pass' if ratios[name] >= least else 'MISSED'}")
    print(f"  longest gap between two pieces with a back: {1000 * bench.longest_gap_s:.0f} ms")
    return {"tokens_per_s": medians, "ratios": ratios, "runs": bench.found, "longest_gap_s": bench.longest_gap_s}


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

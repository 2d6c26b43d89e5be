"""Measures a draft on an RPC server of this machine, each model with one core, beside a draft in the same process.

python -m benchmarks.rpc [-r N] [-n N] [--pairs NAME…]; README.md has the protocol.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import git_commit
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.ratios import Rates, show
from duo.bench.hardware import hardware
from duo.bench.process import run_process
from tests.command import command
from tests.serving import RpcServer

# The draft's process computes itself, as one without an RPC server would: what it costs to have one is left.
_NO_SERVER = """
from duo.cli import elsewhere
arguments = elsewhere._arguments
elsewhere._arguments = lambda *given: [each for each in arguments(*given) if "--rpc=" not in each]
"""

# What is compared: a figure over another one, and the least that it should be.
BARS = {
    "draft on RPC over loopback over one in the process": ("rpc", "thread", 0.85),
    "draft in a supervised process over one in the process": ("supervised", "thread", 0.95),
}


def measure(target: Path, draft: Path, files: list[Path], n_tokens: int, repetitions: int) -> Rates:
    """All ways in turns."""
    rates: Rates = {}
    with RpcServer() as server, tempfile.TemporaryDirectory() as folder:
        both = ("-md", str(draft), "-td", "1")
        ways: dict[str, tuple[tuple[str, ...], str]] = {
            "plain": ((), ""),
            "thread": (both, ""),
            "supervised": ((*both, "--rpc", server.name), _NO_SERVER),
            "rpc": ((*both, "--rpc", server.name), ""),
            "target on rpc": (("--rpc", server.name), ""),
        }
        report = Path(folder) / "duo.json"
        for repetition in range(repetitions):
            for file in files:
                names = list(ways)
                for i, way in enumerate(names[repetition % len(names) :] + names[: repetition % len(names)]):
                    print(
                        f"\r{repetition + 1}/{repetitions} {file.stem:<12} {i + 1}/{len(ways)}", end="", file=sys.stderr
                    )
                    options, before = ways[way]
                    fixed = ("-m", target, "-t", "1", "-f", file, "-n", str(n_tokens), "--ignore-eos", "--json", report)
                    line = [str(part) for part in command(*fixed, *options, before=before)]
                    cost = run_process(line, {"DUO_CONFIG": f"{folder}/{way}"})
                    if cost.status:
                        raise SystemExit(cost.stderr)
                    rate = json.loads(report.read_text())["generation"]["tokens_per_s"]
                    rates.setdefault(way, {}).setdefault(file.stem, []).append(rate)
    print(file=sys.stderr)
    return rates


def main() -> None:
    arguments = parser("rpc", (__doc__ or "").partition("\n")[0], n_tokens=256)
    arguments.add_argument("--pairs", nargs="+", default=["smollm2-f16", "smollm2-f32"], choices=PAIRS)
    options = arguments.parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    document: dict[str, object] = {"hardware": hardware(), **git_commit(), "load": quiet_enough()}
    for pair in options.pairs:
        target, draft = (make() for make in PAIRS[pair])
        document[pair] = show(measure(target, draft, files, options.n_tokens, options.repetitions), BARS, pair)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

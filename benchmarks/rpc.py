"""Measures a draft on an RPC server of this machine, each model with one core, beside a draft in the same process.

python -m benchmarks.rpc [-r N] [-n N] [--pairs NAME…]; README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.measure import git_commit
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.ratios import Rates, in_turns, show
from duo.bench.facts import hardware
from tests.command import command
from tests.serving import RpcServer

# The draft's process computes itself, as one without an RPC server would: what it costs to have one is left.
_NO_SERVER = """
from dataclasses import replace
from duo.link import process
plan = process.DraftPlan
process.DraftPlan = lambda url, model, context: plan(url, replace(model, rpc_servers=()), context)
"""

# What is compared: a figure over another one, and the least that it should be.
BARS = {
    "draft on RPC over loopback over one in the process": ("rpc", "thread", 0.85),
    "draft in a supervised process over one in the process": ("supervised", "thread", 0.95),
}


def measure(target: Path, draft: Path, files: list[Path], options: argparse.Namespace) -> Rates:
    """All ways in turns."""
    with RpcServer() as server:
        alone = ("-m", target, "-t", "1")
        both = (*alone, "-md", draft, "-td", "1")
        ways = {
            "plain": command(*alone),
            "thread": command(*both),
            "supervised": command(*both, "--rpc", server.name, before=_NO_SERVER),
            "rpc": command(*both, "--rpc", server.name),
            "target on rpc": command(*alone, "--rpc", server.name),
        }
        return in_turns({way: [*map(str, line)] for way, line in ways.items()}, files, options)


def main() -> None:
    arguments = parser("rpc", (__doc__ or "").partition("\n")[0], n_tokens=256)
    arguments.add_argument("--pairs", nargs="+", default=["smollm2-f16", "smollm2-f32"], choices=PAIRS)
    options = arguments.parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    document: dict[str, object] = {"hardware": hardware(), **git_commit(), "load": quiet_enough()}
    for pair in options.pairs:
        target, draft = (make() for make in PAIRS[pair])
        document[pair] = show(measure(target, draft, files, options), BARS, f"{pair}, one core each")
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The options that both comparisons share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from shlex import split

from benchmarks.measure import REPOSITORY
from benchmarks.models import PEERS

PROMPTS = REPOSITORY / "benchmarks" / "prompts"


def parser(module: str, summary: str, n_tokens: int) -> argparse.ArgumentParser:
    """A command line with the options of every comparison."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=summary)
    add = found.add_argument
    add("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each; medians count (%(default)s)")
    add("-n", "--n-tokens", type=int, default=n_tokens, metavar="N", help="tokens per run (%(default)s)")
    add("--prompts", type=Path, nargs="+", metavar="FILE", help="instead of those in benchmarks/prompts")
    add("--duo", type=split, default=_duo_command(), metavar="COMMAND", help="how duo is started")
    add("--peers", type=Path, default=PEERS, metavar="DIR", help="llama.cpp's programs")
    add("--json", type=Path, metavar="FILE", help="write the JSON document here")
    return found


def _duo_command() -> list[str]:
    """The installed `duo` of this interpreter, or the module in this tree."""
    installed = Path(sys.executable).parent / "duo"
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "duo.cli.main"]


def quiet_enough() -> float:
    """The load of the last minute; says so if another program is at work, because it takes a core from somebody."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"load {load:.2f} before the first run: is the machine busy?", file=sys.stderr)
    return round(load, 2)

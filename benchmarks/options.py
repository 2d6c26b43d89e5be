"""The options shared by all scenarios."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from shlex import split

from benchmarks import PEERS


def parser(program: str, summary: str) -> argparse.ArgumentParser:
    """A parser with the shared options. This imports only the standard library and modules that need nothing else."""
    found = argparse.ArgumentParser(
        prog=program, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add(
        "-r",
        "--rounds",
        type=int,
        metavar="N",
        help="number of rounds, one prompt each (default: by scenario)",
    )
    add("-n", "--n-tokens", type=int, metavar="N", help="number of tokens per text (default: by scenario)")
    add(
        "--prompts",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="prompts (default: of the pair, in benchmarks/prompts)",
    )
    add("--only", nargs="+", metavar="NAME", help="measure only contestants whose names start with NAME")
    add("--duo", type=split, default=_duo_command(), metavar="COMMAND", help="command that starts duo")
    add("--peers", type=Path, default=PEERS, metavar="DIR", help="folder of llama.cpp's programs")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write all figures to FILE, the tables to FILE with suffix .md",
    )
    return found


def _duo_command() -> list[str]:
    """The `duo` command of this interpreter, or else the module in this repository."""
    installed = Path(sys.executable).parent / "duo"
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "duo.cli.main"]

"""Benchmark scenarios for duo.bench; see README.md."""

from argparse import ArgumentParser
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROMPTS = REPOSITORY / "benchmarks" / "prompts"
PEERS = REPOSITORY / "build" / "peers" / "bin"  # llama.cpp's programs: see peers.sh


def argument_parser(module: str, document: str | None) -> ArgumentParser:
    """That of a module with this docstring."""
    return ArgumentParser(prog=f"python -m benchmarks.{module}", description=(document or "").splitlines()[0])

"""Benchmark scenarios for duo.bench; see README.md."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROMPTS = REPOSITORY / "benchmarks" / "prompts"
PEERS = REPOSITORY / "build" / "peers" / "bin"  # llama.cpp's programs: see peers.sh

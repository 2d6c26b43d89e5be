"""What llama.cpp's programs of llama-cpp-python 0.3.36 wrote: 24 tokens of the demo pair after PROMPT."""

from __future__ import annotations

from pathlib import Path

from duo.bench.contestant import Job
from duo.bench.process import Cost

PROMPT = "The old mill\nstood still."
TEXT = " The old mill was a place where the past lived. It was a place where people could come and work, and where"
N_TOKENS = 24
JOB = Job(Path("target.gguf"), Path("draft.gguf"), PROMPT, Path("prompt.txt"), N_TOKENS, 256)


def recorded(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def cost(stdout: str = "", stderr: str = "") -> Cost:
    """A process that wrote this and exited with 0."""
    return Cost(stdout, stderr, 0, 1.0, 1)

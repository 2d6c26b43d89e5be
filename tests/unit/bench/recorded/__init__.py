"""What llama.cpp's programs of llama-cpp-python 0.3.36 wrote: 24 tokens of the demo pair after PROMPT."""

import subprocess
from pathlib import Path

from duo.bench.rounds import Job

PROMPT = "The old mill\nstood still."
TEXT = " The old mill was a place where the past lived. It was a place where people could come and work, and where"
N_TOKENS = 24
JOB = Job(Path("target.gguf"), Path("draft.gguf"), PROMPT, Path("prompt.txt"), N_TOKENS, 256)


def recorded(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def ended(stdout: str = "", stderr: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    """A process that wrote this."""
    return subprocess.CompletedProcess([], status, stdout, stderr)

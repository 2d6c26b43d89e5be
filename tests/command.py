"""Runs the real command in a process of its own."""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[1]

Argument = str | bytes | Path

# One thread each, so that tests do not stand in each other's way.
ONE_EACH = ("-t", "1", "-td", "1")

# Code for `before`; see tests/child.py.
SLOW_TARGET = "from tests.child import slow_target; slow_target()\n"

# Code for `before`: a text begins with the draft in another process, however long that takes to load.
PATIENT = "from duo.remote import process; process._PATIENCE_S = 300.0\n"

_CONFIGS = tempfile.TemporaryDirectory(prefix="duo-config-")
_numbers = count()

_SETTINGS = ("LLAMA_ARG_", "LLAMA_API_KEY", "DUO_BACK_TOKEN", "NO_COLOR", "FORCE_COLOR", "TTY_", "COLUMNS", "LINES")


@dataclass(frozen=True, slots=True)
class Run:
    """What a finished command left behind."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("duo: warning: ")]

    @property
    def n_tokens(self) -> int:
        """Tokens according to the last line, whose form is a promise."""
        last = re.fullmatch(r"tokens: (\d+) tps: \d+\.\d{3}", self.stderr.splitlines()[-1])
        assert last is not None, self.stderr
        return int(last[1])

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt, according to the report."""
        return int(self._reported(r"prompt: (\d+) tokens"))

    @property
    def stopped(self) -> str:
        """Why the text ended, according to the report."""
        assert self.status == 0, self.stderr
        return self._reported(r"stopped: ([\w ]+)")

    def _reported(self, pattern: str) -> str:
        found = re.search(f"^speed .*{pattern}", self.stderr, re.MULTILINE)
        assert found is not None, self.stderr
        return found[1]


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment without anything that changes what duo does, then `more`.

    Each has a config directory of its own, so that no run learns from another.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_SETTINGS)}
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        "TERM": "xterm-256color",
        "DUO_CONFIG": f"{_CONFIGS.name}/{next(_numbers)}",
    }
    return kept | own | (more or {})


def gated_target(gate: Path, seconds: float = 0.05) -> str:
    """Code for `before`: a target as slow as `slow_target(seconds)`, whose fifth decode waits for the file `gate`."""
    call = f"slow_target({seconds}); gated_target({str(gate)!r})"
    return f"from tests.child import gated_target, slow_target; {call}\n"


def models(target: Path, draft: Path | None = None) -> list[Argument]:
    """The options that name them."""
    return ["-m", target] if draft is None else ["-m", target, "-md", draft]


def command(*arguments: Argument, before: str = "") -> list[Argument]:
    """The command line of `duo`; `before` is Python code that its process runs first."""
    if before:
        return [sys.executable, "-c", f"{before}\nfrom duo.cli.main import main\nmain()", *arguments]
    return [sys.executable, "-m", "duo.cli.main", *arguments]


def duo(*arguments: Argument, stdin: bytes = b"", before: str = "", env: dict[str, str] | None = None) -> Run:
    """Run `duo` to its end; `env` is for environment variables that matter."""
    return run(*command(*arguments, before=before), stdin=stdin, env=env)


def python(code: str, *arguments: Argument, env: dict[str, str] | None = None) -> Run:
    """Run Python code to its end."""
    return run(sys.executable, "-c", code, *arguments, env=env)


def run(*words: Argument, stdin: bytes = b"", env: dict[str, str] | None = None, cwd: Path | None = None) -> Run:
    """Run a program to its end."""
    done = subprocess.run(
        words, input=stdin, env=environment(env), cwd=cwd, capture_output=True, timeout=300, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def assert_refused(run: Run, *said: str, status: int = 1) -> None:
    """The command has said in one line on stderr what is wrong, and nothing else."""
    assert run.stdout == b""
    assert run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith("duo: error: ")
    for words in said:
        assert words in run.stderr
    assert run.status == status

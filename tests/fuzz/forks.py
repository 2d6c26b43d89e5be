"""Runs `duo` in forks of a process that has imported it: fast, and each may die.

The process reads a list of arguments in JSON from each line of stdin, and prints one line of JSON for each: the exit
status, or minus the signal, and what was written to stderr.
"""

import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

import typer

import duo.loading  # noqa: F401 - imported before the fork
from duo.cli import app as cli
from duo.cli import commands
from duo.cli import main as entry
from duo.llama import library
from tests.command import environment

MEMORY = 6 * 2**30  # bytes of address space
LIMIT_S = 60  # a hang


class Forks(subprocess.Popen[str]):
    """Called with arguments, returns status and standard error."""

    stdin: IO[str]
    stdout: IO[str]

    def __init__(self, folder: Path) -> None:
        env = environment({"LLAMA_ARG_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"})
        command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
        super().__init__(command, stdin=pipe, stdout=pipe, text=True, cwd=folder, env=env)

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self.stdin.write(json.dumps(arguments) + "\n")
        self.stdin.flush()
        status, stderr = json.loads(self.stdout.readline())
        return status, stderr

    def fault(self, *arguments: str) -> str:
        """What is wrong with the end of a run; empty if nothing is."""
        status, stderr = self(*arguments)
        lines, is_verdict = stderr.splitlines(), status == 1 and arguments[0] == "check"
        faults = {
            "a status that is no exit status of duo": status not in (0, 1, 2),  # negative: a signal
            "not one line": status and sum(line.startswith("duo: error: ") for line in lines) != 1 and not is_verdict,
            "lines of somebody else": status and not all(line.startswith("duo: ") for line in lines),
            "a traceback or warning": any(words in stderr for words in ("Traceback", "Warning:", "libgomp")),
        }
        wrong = ", ".join(filter(faults.get, faults))
        return wrong and f"{arguments!r} ended with {status}: {wrong}\n{stderr[-1500:]}"


def main() -> None:
    """See the module."""
    library.start()
    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        import_module(module.name)
    cli.app = typer.main.get_command(cli.app)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        for line in sys.stdin:
            pid = os.fork()
            if not pid:
                _run(json.loads(line), out, err)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            sys.stdout.write(json.dumps([status, err.read_text(errors="replace")]) + "\n")
            sys.stdout.flush()


def _run(arguments: list[str], out: Path, err: Path) -> NoReturn:
    status = 99
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(LIMIT_S)
        for fd, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["duo", *arguments]
        entry.main()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

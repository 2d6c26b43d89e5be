"""Runs `duo` once per line of stdin, a list of its arguments in JSON, in a fork of this process: fast, and it may die.

Prints one line of JSON for each: the wait status, and what was written to stderr.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import typer

import duo.cli.commands.run
import duo.loading  # noqa: F401 - imported before the fork
from duo.cli import app as cli
from duo.cli import main as entry
from duo.llama import library

MEMORY = 6 * 2**30  # bytes of address space
LIMIT_S = 60  # a hang


def main() -> None:
    """See the module."""
    library.start()
    command = typer.main.get_command(cli.app)
    cli.app = command  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        for line in sys.stdin:
            pid = os.fork()
            if not pid:
                _run(json.loads(line), out, err)
            _, status = os.waitpid(pid, 0)
            sys.stdout.write(json.dumps([status, err.read_text(errors="replace")]) + "\n")
            sys.stdout.flush()


def _run(arguments: list[str], out: Path, err: Path) -> NoReturn:
    status = 99
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(LIMIT_S)
        for fd, path in ((1, out), (2, err)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, fd)
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

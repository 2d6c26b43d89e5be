"""Runs the command in this process: for all that needs no process of its own and no terminal."""

import atexit
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

import typer

from duo.cli import app as cli
from duo.cli.commands import run as run_command
from duo.cli.commands.options import RunOptions
from duo.cli.main import main
from tests.command import Argument, Run, environment

_LOGGERS = ("duo", "duo.llama", "asyncio")
_COMMAND = typer.main.get_command(cli.app)  # to build it takes longer than most commands


def duo(*arguments: Argument, stdin: bytes = b"", env: dict[str, str] | None = None) -> Run:
    """What `tests.command.duo` returns; nothing that the command changes in this process stays changed."""
    stdout, stderr = io.BytesIO(), io.BytesIO()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment(env), clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["duo", *map(os.fsdecode, arguments)]))
        for name, file, errors in (
            ("stdin", io.BytesIO(stdin), "strict"),
            ("stdout", stdout, "strict"),
            ("stderr", stderr, "backslashreplace"),
        ):
            stream = io.TextIOWrapper(file, "utf-8", errors, newline="\n", write_through=True)
            stack.callback(stream.detach)
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(_unchanged())
        if not {"-h", "--help", "help"} & set(arguments):  # which changes what it was built of
            stack.enter_context(mock.patch.object(cli, "app", _COMMAND))
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code or 0
        assert isinstance(status, int)
    return Run(status, stdout.getvalue(), stderr.getvalue().decode())


@contextmanager
def _unchanged() -> Iterator[None]:
    """Restore the log and the signal handlers; call what is registered for the exit."""
    at_exit: list[Callable[[], object]] = []
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(log, log.handlers[:], log.level, log.propagate) for log in loggers]
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        mock.patch.object(logging, "raiseExceptions", logging.raiseExceptions),
        mock.patch.object(atexit, "register", at_exit.append),
    ):
        try:
            yield
        finally:
            for call in reversed(at_exit):
                call()
            for log, handlers, level, propagate in before:
                for handler in set(log.handlers) - set(handlers):
                    log.removeHandler(handler)
                    with suppress(OSError):  # a full disk
                        handler.close()
                log.setLevel(level)
                log.propagate = propagate
            for number, handle in signals.items():
                signal.signal(number, handle)


def parse(*arguments: Argument, env: dict[str, str] | None = None) -> RunOptions:
    """The options of a run, without the run."""
    found: list[RunOptions] = []

    def record(options: RunOptions) -> int:
        found.append(options)
        return 0

    with mock.patch.object(run_command, "run", record):
        run = duo(*arguments, env=env)
    assert (run.status, run.stderr) == (0, ""), run.stderr
    return found[0]

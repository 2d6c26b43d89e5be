"""The runner itself: a command that is run in this process leaves nothing behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from tests.unit.cli.runner import duo


def _state() -> tuple[object, ...]:
    loggers = [logging.getLogger(name) for name in ("duo", "duo.llama", "asyncio")]
    return (
        [(log.handlers[:], log.level, log.propagate) for log in loggers],
        (logging.raiseExceptions, dict(os.environ), sys.argv, sys.stdin, sys.stdout, sys.stderr),
        (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
        {thread for thread in threading.enumerate() if "duo" in thread.name or "_monitor" in thread.name},
    )


def test_a_run_leaves_no_state_behind(tiny: Path, tmp_path: Path) -> None:
    before = _state()
    run = duo("-m", tiny, "-p", "the cat", "-n", "2", "-v", "--log-file", tmp_path / "log", env={"NO_COLOR": "1"})
    assert (run.status, run.n_tokens) == (0, 2)
    assert duo("-m", "missing.gguf", "-p", "x").status == 1
    assert _state() == before

"""Processes of other programs: their output and failures, and that they do not outlive a benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from duo.bench.programs import Program, run_process, version
from duo.bench.rounds import Interrupted, ParseError
from tests.unit.bench.recorded import JOB

START = """
import sys, threading
from duo.bench.programs import run_process
run_process([sys.executable, "-c", {code!r}, sys.argv[1]], threading.Event())
"""
NEVER = threading.Event()
WRITE_PID = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '.'); time.sleep(600)"


def test_the_output_of_a_process_without_variables_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    code = "import os, sys; print('text' * 100_000); sys.exit(str(any(n[:5] == 'LLAMA' for n in os.environ)))"
    ended = run_process([sys.executable, "-c", code], NEVER)
    assert (len(ended.stdout), ended.stderr, ended.returncode) == (400_001, "False\n", 1)


def test_what_a_script_has_started_ends_with_it(tmp_path: Path) -> None:
    path, stop = tmp_path / "pid", threading.Event()
    command = ["sh", "-c", '"$@"; echo', "sh", sys.executable, "-c", WRITE_PID, str(path)]

    def stop_it() -> None:
        _pid(path)
        stop.set()

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    with pytest.raises(Interrupted):
        run_process(command, stop)
    stopping.join()
    _assert_ends(_pid(path))


def test_a_program_ends_with_a_killed_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", START.format(code=WRITE_PID), str(path)]) as bench:
        pid = _pid(path)
        bench.send_signal(signal.SIGKILL)
    _assert_ends(pid)


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"llama-cli: cannot run .*: Permission denied"):
        Program("llama-cli", tmp_path, 1).write(JOB, NEVER)


def test_the_version_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'version: 7 (abc)' >&2\necho built >&2\n", encoding="utf-8")
    program.chmod(0o755)
    assert (version(program), version(tmp_path)) == ("7 (abc)", None)
    assert version(Path(sys.executable)) is None, "its answer is of another kind"


def _pid(path: Path) -> int:
    """That of the program, as soon as it has written it."""
    for _ in range(600):
        if path.exists() and (text := path.read_text()).endswith("."):
            return int(text[:-1])
        time.sleep(0.05)
    raise AssertionError("it was not started")


def _assert_ends(pid: int) -> None:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it outlived what had started it")

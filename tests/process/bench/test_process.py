"""Other programs: they do not outlive this process, and time that runs out is no fault of theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from duo.bench.contestant import Interrupted
from duo.bench.process import Child, run_process

SLEEP = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
START = """
import sys, time
from duo.bench.process import Child, run_process
command = [sys.executable, "-c", {code!r}, sys.argv[1]]
{start}
time.sleep(600)
"""
WRITE_PID = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '.'); time.sleep(600)"


@pytest.mark.parametrize("how", ["end", "kill", "stop"])
def test_what_a_script_has_started_ends_with_it(how: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    command = ["sh", "-c", '"$@"; echo', "sh", sys.executable, "-c", WRITE_PID, str(path)]
    if how == "stop":
        stop = threading.Event()

        def stop_it() -> None:
            _wait_for_pid(path)
            stop.set()

        threading.Thread(target=stop_it).start()
        with pytest.raises(Interrupted):
            run_process(command, stop=stop)
    else:
        child = Child(command)
        _wait_for_pid(path)
        if how == "kill":
            child.kill()
        child.end()
    pid = _wait_for_pid(path)
    for _ in range(200):
        if _has_ended(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it outlived the script")


@pytest.mark.parametrize("start", ["child = Child(command)", "run_process(command)"])
def test_a_program_ends_with_a_killed_benchmark(start: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    code = START.format(code=WRITE_PID, start=start)
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as bench:
        pid = _wait_for_pid(path)
        bench.send_signal(signal.SIGKILL)
    for _ in range(200):
        if _has_ended(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it outlived the benchmark")


def test_time_that_runs_out_is_an_error_of_its_own() -> None:
    with pytest.raises(TimeoutError):
        run_process(SLEEP, timeout_s=0.1)


def _wait_for_pid(path: Path) -> int:
    for _ in range(200):
        if path.exists() and (text := path.read_text()).endswith("."):
            return int(text[:-1])
        time.sleep(0.05)
    raise AssertionError("it was not started")


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False

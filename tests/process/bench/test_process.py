"""Processes of other programs: what they cost, and that they do not outlive a benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.bench.contestant import Interrupted
from duo.bench.process import Child, run_process

START = """
import sys, time
from duo.bench.process import Child, run_process
command = [sys.executable, "-c", {code!r}, sys.argv[1]]
{start}
time.sleep(600)
"""
LONG_S = 600.0
WRITE_PID = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '.'); time.sleep(600)"


def test_the_cost_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    code = (
        "import os, sys; print('text' * 100_000); sys.exit(repr([*filter(lambda n: n[:3] in 'LLA OWN', os.environ)]))"
    )
    cost = run_process([sys.executable, "-c", code], {"OWN": "1"})
    assert (len(cost.stdout), cost.stderr, cost.status) == (400_001, "['OWN']\n", 1)
    assert cost.wall_s > 0
    assert cost.peak_bytes > 1_000_000


@pytest.mark.parametrize("how", ["exit", "stop", "interrupt"])
def test_what_a_script_has_started_ends_with_it(how: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    command = ["sh", "-c", '"$@"; echo', "sh", sys.executable, "-c", WRITE_PID, str(path)]
    stop = threading.Event()
    with Child(command) as child:
        pid = _pid(path)
        if how == "stop":
            assert child.stop() == -signal.SIGTERM
        elif how == "interrupt":
            stop.set()
            with pytest.raises(Interrupted):
                child.wait(stop=stop)
    _assert_ends(pid)


@pytest.mark.parametrize("start", ["child = Child(command)", "run_process(command)"])
def test_a_program_ends_with_a_killed_benchmark(start: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    code = START.format(code=WRITE_PID, start=start)
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as bench:
        pid = _pid(path)
        bench.send_signal(signal.SIGKILL)
    _assert_ends(pid)


def test_a_timeout_kills_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, asked = tmp_path / "pid", time.perf_counter, count()
    # The timeout expires when the program runs, and not before. The first two times are the beginning and the end.
    clock = SimpleNamespace(perf_counter=lambda: real() + (LONG_S if next(asked) > 1 and _is_written(path) else 0))
    monkeypatch.setattr("duo.bench.process.time", clock)
    with pytest.raises(TimeoutError):
        run_process([sys.executable, "-c", WRITE_PID, str(path)], timeout_s=LONG_S / 2)
    _assert_ends(_pid(path))


def _pid(path: Path) -> int:
    """That of the program, as soon as it has written it."""
    for _ in range(600):
        if _is_written(path):
            return int(path.read_text()[:-1])
        time.sleep(0.05)
    raise AssertionError("it was not started")


def _is_written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith(".")


def _assert_ends(pid: int) -> None:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it outlived what had started it")

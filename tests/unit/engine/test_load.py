"""The processor time of other programs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.engine import load
from duo.engine.load import is_busy, moment, others, waiting


class System:
    """Processors 0 and 1 of three, whose times move only here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.now = 100.0
        self.own_s = 0.0
        self._ticks = [[1000] * 8 for _ in range(3)]
        self.spend(0.0, 0.0)

    def spend(self, seconds: float, others: float, own: float = 0.0, field: int = 0) -> None:
        """`others` and `own` processors compute for a while; the others are counted in `field`."""
        self.now += seconds
        self.own_s += own * seconds
        self._ticks[0][field] += round(100 * others * seconds)
        self._ticks[1][2] += round(100 * own * seconds)
        self._ticks[2][0] += round(100 * seconds)
        lines = [f"cpu{i} {' '.join(map(str, ticks))} 900 900" for i, ticks in enumerate(self._ticks)]
        self._path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 7 8", "ctxt 9", ""]))


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> System:
    made = System(tmp_path / "stat")
    monkeypatch.setattr(load, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(load, "allowed_cores", lambda: frozenset((0, 1)))
    clock = SimpleNamespace(monotonic=lambda: made.now, process_time=lambda: made.own_s)
    monkeypatch.setattr(load, "time", clock)
    return made


@pytest.mark.parametrize("field", [0, 1, 2, 5, 6, 7])
def test_what_other_programs_use_on_the_processors_of_this_one(system: System, field: int) -> None:
    since = moment()
    system.spend(2.0, 0.5, own=1.5, field=field)
    assert others(since) == pytest.approx(0.5, abs=0.02)
    since = moment()
    system.spend(2.0, 0.0, own=2.0)
    assert others(since) == 0


@pytest.mark.parametrize("field", [3, 4])
def test_idle_time_is_not_used(system: System, field: int) -> None:
    since = moment()
    system.spend(2.0, 1.0, field=field)
    assert others(since) == 0


def test_what_the_resolution_may_hide_is_not_counted(system: System) -> None:
    since = moment()
    system.spend(0.05, 0.4)
    assert others(since) == 0


@pytest.mark.parametrize("content", [None, "", "cpu0 1 2 3", "cpu0 1 x\ncpu1 1 2\n", "cpu 1 2 3 4 5 6 7 8\n"])
def test_without_these_figures_nothing_is_known(system: System, tmp_path: Path, content: str | None) -> None:
    since = moment()
    system.spend(2.0, 1.0)
    (tmp_path / "stat").unlink() if content is None else (tmp_path / "stat").write_text(content)
    assert others(since) == 0.0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system has no /proc")
def test_a_child_is_no_other_program() -> None:
    before, spent = moment(), 0.0
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as child:
        own = time.process_time()
        while spent < 0.2:  # seconds of the child's
            spent = moment().own_s - before.own_s - (time.process_time() - own)
            assert child.poll() is None
        child.kill()


def test_a_program_disturbs_if_there_is_no_processor_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "allowed_cores", lambda: frozenset(range(16)))
    assert not is_busy(0.2, 16)
    assert is_busy(0.3, 16)
    assert not is_busy(1.5, 8)
    assert is_busy(3.0, 8), "hardware threads share cores"
    assert is_busy(0.3, 20)


def test_the_figures_of_this_system() -> None:
    since = moment()
    assert since.own_s > 0
    assert others(since) >= 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int | None]:
    """What is found if so many threads run at each look, one of them this one."""

    def look(*running: int | str, n_cpus: int = 2, quota: float | None = None) -> int | None:
        contents = iter(running)
        path = tmp_path / "loadavg"

        def show(_: float = 0.0) -> None:
            path.write_text(f"0.50 0.40 0.30 {next(contents, 9)}/123 4567\n")

        show()
        monkeypatch.setattr(load, "_LOADAVG", path)
        monkeypatch.setattr(load, "allowed_cores", lambda: frozenset(range(n_cpus)))
        monkeypatch.setattr(load, "cpu_quota", lambda: quota)
        monkeypatch.setattr(load, "os", SimpleNamespace(cpu_count=lambda: 2))
        monkeypatch.setattr(load, "time", SimpleNamespace(sleep=show))
        return waiting()

    return look


def test_threads_that_want_to_compute_right_now(looks: Callable[..., int | None]) -> None:
    assert looks(1) == 0
    assert looks(3, 3, 3, 3) == 2
    assert looks(3, 4, 2, 3) == 1, "one computes for a moment"
    assert looks(5, 1) == 0


def test_what_runs_on_other_processors_is_not_known(looks: Callable[..., int | None]) -> None:
    assert looks(3, 3, 3, 3, n_cpus=1) is None
    assert looks(3, 3, 3, 3, quota=1.5) is None
    assert looks("x") is None

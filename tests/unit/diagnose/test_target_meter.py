"""Measuring while other programs compute: it waits for them, and ends within the limit."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence

import pytest

from duo.diagnose import target_meter
from duo.diagnose.target_meter import SIZES, TargetMeter
from duo.diagnose.timing import MeasurementError
from tests.fakes import FakeContext

QUIET, BUSY = 0.0, 1.7
CORES = 2


class Clock:
    """Replaces the module `time`; what waits advances it, too."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


class Stop(threading.Event):
    """Its wait() takes no time but the clock's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        return self.is_set()


class Machine:
    """A target that takes 10 ms and 1 ms for each token on one thread, five times as long while others compute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.notes = Clock(), list[str]()
        self.busy: Callable[[float], bool] = lambda _: False  # by seconds
        self.target = FakeContext(lambda _: 1, self._pass, 64, 32, 300)
        self.batch_s: Callable[[int], float] = lambda n: 0.010 + 0.001 * n
        monkeypatch.setattr(target_meter, "time", self.clock)
        monkeypatch.setattr(target_meter, "other_cpu_use", lambda _: BUSY if self.busy(self.clock.now) else QUIET)
        monkeypatch.setattr(target_meter, "cpu_times", lambda: self.clock)  # its `now` never seems to pass
        monkeypatch.setattr(target_meter, "usable_cores", lambda: CORES)
        monkeypatch.setattr(target_meter, "is_busy", lambda n_others, _: n_others > 1)
        self.stop = Stop(self.clock)
        self.meter = TargetMeter(self.target, lambda *_: None, self.stop, len(SIZES), self.notes.append)

    def _pass(self) -> None:
        seconds = self.batch_s(self.target.batches[-1]) / max(1, self.target.teams[-1])
        self.clock.now += seconds * (5 if self.busy(self.clock.now) else 1)

    def announce(self) -> tuple[float, float]:
        return self.meter.announce(CORES, 1, 10, on_cpu=True)

    def times(self) -> Sequence[float]:
        return self.meter.target_times(CORES)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


EXPECTED = [(0.010 + 0.001 * n) / CORES for n in SIZES]


def test_an_idle_machine_is_measured_as_fast_as_announced(machine: Machine) -> None:
    expected_s, limit_s = machine.announce()
    start = machine.clock.now
    assert machine.times() == pytest.approx(EXPECTED)
    assert machine.clock.now - start < 2 * expected_s < limit_s
    assert machine.notes == []


def test_it_waits_for_other_programs_and_measures_again(machine: Machine) -> None:
    machine.announce()
    begin = machine.clock.now + 1
    machine.busy = lambda now: begin < now < begin + 8
    assert machine.times() == pytest.approx(EXPECTED), "nothing that was disturbed counts"
    (said,) = machine.notes
    assert said.startswith("other programs use 1.7 of 2 cores: waiting for up to ")


def test_disturbed_times_are_used_when_the_rest_of_the_time_is_needed_for_them(machine: Machine) -> None:
    expected_s, limit_s = machine.announce()
    start = machine.clock.now
    machine.busy = lambda _: True
    assert machine.times() == pytest.approx([5 * seconds for seconds in EXPECTED])
    assert machine.meter.doubts == "other programs use 1.7 of 2 cores"
    waited = machine.clock.now - start
    assert 20 < waited < limit_s
    (said,) = machine.notes
    (most,) = re.findall(r"waiting for up to (\d+) s, and measuring again", said)
    assert 15 < int(most) <= math.ceil(limit_s - 2 * expected_s)


@pytest.mark.parametrize("vary", [True, False], ids=["that vary too much", "that contradict each other"])
def test_times_are_doubted(machine: Machine, vary: bool) -> None:
    machine.announce()
    speeds = iter(range(10**6))
    right = machine.batch_s
    machine.batch_s = lambda n: 0.0005 * next(speeds) if vary else 0.001 if n == 4 else right(n)
    machine.times()
    assert machine.meter.doubts == "the times vary too much"


def test_without_any_times_there_is_no_result(machine: Machine) -> None:
    machine.announce()
    machine.batch_s = lambda _: 1000.0
    with pytest.raises(MeasurementError, match="cannot be measured now: the times vary too much"):
        machine.times()


def test_of_a_slow_target_fewer_sizes_are_timed(machine: Machine) -> None:
    machine.batch_s = lambda n: 1.0 + 0.1 * n
    machine.announce()
    machine.target.batches.clear()
    assert machine.times() == pytest.approx([(1.0 + 0.1 * n) / CORES for n in SIZES]), "interpolated"
    assert set(machine.target.batches) - {32} == {1, 2, 3, 4, 5, 8, 12, 17}

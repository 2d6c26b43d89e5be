"""The processor time of other programs, and how many cores the decodes use beside them."""

import math
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.engine import cores as module
from duo.engine.cores import CoresInUse, cpu_times, is_busy, other_cpu_use


class Processors:
    """Processors 0 and 1 of three, whose times move only here."""

    def __init__(self) -> None:
        self.now, self.own_s, self.n_cores, self.n_readings = 100.0, 0.0, 2, 0
        self.is_known = True  # whether the system tells the times
        self.n_ready = math.inf  # threads that want to compute
        self._times = [{"user": 0.0, "idle": 0.0, "system": 0.0, "steal": 0.0} for _ in range(3)]

    def cpu_times(self, *, percpu: bool) -> list[SimpleNamespace]:
        """As of psutil, on a system that tells no times of interrupts."""
        assert percpu
        self.n_readings += 1
        return [SimpleNamespace(**each) for each in self._times] if self.is_known else []

    def spend(self, seconds: float, others: float, own: float = 0.0, field: str = "user") -> None:
        """`others` and `own` processors compute for a while; the others are counted in `field`."""
        self.now += seconds
        self.own_s += own * seconds
        self._times[0][field] += others * seconds
        self._times[1]["system"] += own * seconds
        self._times[2]["user"] += seconds

    def cores(self, n_cores: int = 2, *, follows: bool = True) -> CoresInUse:
        self.n_cores = n_cores
        cores = CoresInUse(follows=follows)
        cores.begin()
        return cores

    def decode(self, cores: CoresInUse, seconds: float, others: float) -> int:
        """Decodes of 0.05 s for so long; the cores that they may use at the end."""
        for _ in range(round(seconds / 0.05)):
            self.spend(0.05, others)
            cores.decoded()
        return cores.limit or cores.n_cores


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Processors:
    made = Processors()
    monkeypatch.setattr("psutil.cpu_times", made.cpu_times)
    monkeypatch.setattr(module, "allowed_cores", lambda: frozenset((0, 1)))
    monkeypatch.setattr(module, "usable_cores", lambda: made.n_cores)
    monkeypatch.setattr(module, "cpu_limit", lambda: None)
    clock = SimpleNamespace(monotonic=lambda: made.now, process_time=lambda: made.own_s, sleep=lambda _: None)
    monkeypatch.setattr(module, "time", clock)
    return made


@pytest.mark.parametrize("field", ["user", "steal"])
def test_what_other_programs_use_on_the_processors_of_this_one(processors: Processors, field: str) -> None:
    since = cpu_times()
    processors.spend(2.0, 0.5, own=1.5, field=field)
    assert other_cpu_use(since) == pytest.approx(0.5, abs=0.02)
    since = cpu_times()
    processors.spend(2.0, 0.0, own=2.0)
    processors.spend(2.0, 1.0, field="idle")
    assert other_cpu_use(since) == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system has no /proc")
def test_a_child_is_no_other_program() -> None:
    before, spent = cpu_times(), 0.0
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as child:
        own = time.process_time()
        while spent < 0.2:  # seconds of the child's
            spent = cpu_times().own_s - before.own_s - (time.process_time() - own)
            assert child.poll() is None
        child.kill()


def test_a_program_disturbs_if_there_is_no_processor_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "allowed_cores", lambda: frozenset(range(16)))
    found = [is_busy(used, n_threads) for used, n_threads in ((0.2, 16), (0.3, 16), (1.5, 8), (3.0, 8), (0.3, 20))]
    assert found == [False, True, False, True, True]


# How many cores are free


@pytest.fixture
def system(processors: Processors, monkeypatch: pytest.MonkeyPatch) -> Processors:
    monkeypatch.setattr(module, "_TICK_S", 1e-6)
    monkeypatch.setattr(module, "_n_ready", lambda: processors.n_ready)
    return processors


def test_a_text_begins_with_the_cores_that_others_have_left_since_the_last_one(system: Processors) -> None:
    cores = system.cores(8)
    for n_others, limit in ((3.0, 5), (0.0, 0), (20.0, 1)):
        system.spend(2.0, n_others)
        cores.begin()
        assert cores.limit == limit
    assert cores.fewest == 1


def test_a_program_that_has_ended_leaves_its_cores_to_the_text_that_begins(system: Processors) -> None:
    cores = system.cores(8)
    for n_ready, limit in ((0, 0), (1, 7), (9, 5), (0, 0)):
        system.n_ready = n_ready
        system.spend(2.0, 3.0)
        cores.begin()
        assert cores.limit == limit
    system.n_ready = 0
    assert system.decode(cores, 0.5, 3.0) == 5, "what is used while a text is written counts"


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="the system has no /proc")
def test_threads_that_want_to_compute(tmp_path: Path) -> None:
    assert 0 <= module._n_ready() < 10_000
    loads = tmp_path / "loadavg"
    loads.write_text("0.81 1.51 2.26 3/78 9129\n")
    assert module._n_ready(loads) == 2
    loads.write_text("0.81 1.51 2.26\n")
    assert module._n_ready(loads) == module._n_ready(tmp_path / "none") == math.inf


# Next to as many threads, one busy loop gets two thirds of a core, and two get one core.
@pytest.mark.parametrize(("n_cores", "n_others", "n"), [(2, 0.67, 1), (2, 1.0, 1), (8, 0.9, 7), (8, 2.2, 6)])
def test_busy_cores_are_left_to_others_within_half_a_second(
    system: Processors, n_cores: int, n_others: float, n: int
) -> None:
    assert system.decode(system.cores(n_cores), 0.5, n_others) == n


def test_what_is_left_is_used_as_soon_as_others_have_ended(system: Processors) -> None:
    cores = system.cores(8)
    assert system.decode(cores, 0.5, 3.0) == 5
    assert system.decode(cores, 0.2, 0.9) == 5, "they may pause"
    assert system.decode(cores, 0.4, 0.9) == 7
    assert system.decode(cores, 0.8, 0.1) == 8
    assert cores.fewest == 5


def test_little_load_unknown_load_and_threads_that_were_chosen_have_no_limit(system: Processors) -> None:
    assert system.decode(system.cores(), 10.0, 0.3) == 2
    assert system.n_readings <= 52, "not at every decode"
    given = system.cores(follows=False)
    assert (system.decode(given, 1.0, 1.0), given.fewest) == (2, 1)
    system.is_known = False
    assert system.decode(system.cores(), 1.0, 1.0) == 2

"""The processor time of other programs, and how many cores the decodes use beside them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.engine import free_cores
from duo.engine.free_cores import (
    CoresInUse,
    CpuTimes,
    FreeCores,
    cpu_times,
    is_busy,
    other_cpu_use,
    waiting_threads,
)

# Processor time


class ProcStat:
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
def stat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProcStat:
    made = ProcStat(tmp_path / "stat")
    monkeypatch.setattr(free_cores, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(free_cores, "allowed_cores", lambda: frozenset((0, 1)))
    clock = SimpleNamespace(monotonic=lambda: made.now, process_time=lambda: made.own_s)
    monkeypatch.setattr(free_cores, "time", clock)
    return made


@pytest.mark.parametrize("field", [0, 7])
def test_what_other_programs_use_on_the_processors_of_this_one(stat: ProcStat, field: int) -> None:
    since = cpu_times()
    stat.spend(2.0, 0.5, own=1.5, field=field)
    assert other_cpu_use(since) == pytest.approx(0.5, abs=0.02)
    since = cpu_times()
    stat.spend(2.0, 0.0, own=2.0)
    stat.spend(2.0, 1.0, field=3)  # idle
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
    monkeypatch.setattr(free_cores, "allowed_cores", lambda: frozenset(range(16)))
    assert not is_busy(0.2, 16)
    assert is_busy(0.3, 16)
    assert not is_busy(1.5, 8)
    assert is_busy(3.0, 8), "hardware threads share cores"
    assert is_busy(0.3, 20)


# When it is read, and whether the threads follow


class System:
    """Two cores, on which others use `n_others` and `n_waiting` threads want to compute; None: it does not tell."""

    def __init__(self) -> None:
        self.now, self.total_s = 100.0, 0.0
        self.n_others: float | None = 0.0
        self.n_waiting: int | None = 0
        self.n_looks = self.n_readings = 0

    def times(self) -> CpuTimes:
        self.n_readings += 1
        return CpuTimes(self.now, None if self.n_others is None else self.total_s, 0.0)

    def waiting(self) -> int | None:
        self.n_looks += 1
        return self.n_waiting

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.total_s += seconds * (self.n_others or 0.0)

    def cores(self, *, follows: bool = True) -> CoresInUse:
        clock = lambda: self.now  # noqa: E731
        cores = CoresInUse(follows=follows, n_cores=2, times=self.times, n_waiting=self.waiting, clock=clock)
        cores.begin()
        return cores

    def decode(self, cores: CoresInUse, n: int, seconds: float = 0.05) -> int:
        for _ in range(n):
            self.pass_time(seconds)
            cores.decoded(1, seconds)
        return cores.limit


@pytest.fixture
def system() -> System:
    return System()


def test_the_first_decode_already_leaves_others_their_cores(system: System) -> None:
    system.n_waiting = 1
    cores = system.cores()
    assert cores.limit == 1


def test_the_load_is_read_while_decoding_but_not_at_every_decode(system: System) -> None:
    cores = system.cores()
    assert system.decode(cores, 40) == 0
    assert 6 <= system.n_readings <= 11
    system.n_others = 1.0
    assert system.decode(cores, 8) == 1
    system.n_others = 0.0
    assert system.decode(cores, 16) == 0
    assert cores.fewest == 1


# How many cores are free

TOLERATED = 0.25
READ_S = 0.2  # between two readings of the load


def make(n_cores: int = 2) -> FreeCores:
    return FreeCores(n_cores, TOLERATED)


def read(cores: FreeCores, n_others: float, seconds: float) -> int:
    """The load for a while; the number of cores at its end."""
    for _ in range(round(seconds / READ_S)):
        cores.used(n_others, READ_S)
    return cores.n


def decode(cores: FreeCores, n: int, seconds: Callable[[int], float], n_tokens: int = 1) -> list[int]:
    """`n` decodes that take `seconds` by the number of cores; these numbers."""
    numbers = []
    for _ in range(n):
        numbers.append(cores.n)
        cores.decoded(n_tokens, seconds(cores.n))
    return numbers


# The system tells the load


@pytest.mark.parametrize(
    ("n_cores", "n_waiting", "n"), [(2, 0, 2), (2, 1, 1), (2, 2, 1), (8, 1, 7), (8, 3, 5), (8, 20, 1), (1, 3, 1)]
)
def test_a_text_begins_with_the_cores_that_others_do_not_want(n_cores: int, n_waiting: int, n: int) -> None:
    cores = make(n_cores)
    cores.begin(n_waiting)
    assert cores.n == n
    cores.begin(0)
    assert cores.n == n_cores


# Next to as many threads, one busy loop gets two thirds of a core, and two get one core.
@pytest.mark.parametrize(("n_cores", "n_others", "n"), [(2, 0.67, 1), (2, 1.0, 1), (8, 0.9, 7), (8, 2.2, 6)])
def test_busy_cores_are_left_to_others_within_half_a_second(n_cores: int, n_others: float, n: int) -> None:
    assert read(make(n_cores), n_others, 0.4) == n


def test_what_is_left_is_used_as_soon_as_others_have_ended() -> None:
    cores = make(8)
    assert read(cores, 3.0, 0.4) == 5
    assert read(cores, 0.9, 0.2) == 5, "they may pause"
    assert read(cores, 0.9, 0.2) == 7
    assert read(cores, 0.1, 0.4) == 8


def test_beside_little_load_the_times_decide() -> None:
    for slower, n in ((0.5, 1), (2.0, 2)):
        cores = make()
        for _ in range(20):
            read(cores, 0.4, READ_S)
            decode(cores, 4, lambda n, slower=slower: 0.05 if n == 2 else 0.05 * slower)  # type: ignore[misc]
        assert cores.n == n


# It does not


def beside(n_free: int) -> Callable[[int], float]:
    """Seconds of a decode on so many threads: with more than free cores, all wait for those without one."""
    return lambda n: 0.1 / n if n <= n_free else 1.0 + 0.1 * (n - n_free)


@pytest.mark.parametrize(("n_cores", "n_free"), [(2, 1), (8, 7), (8, 3)])
def test_the_times_alone_tell_how_many_cores_are_free(n_cores: int, n_free: int) -> None:
    cores = make(n_cores)
    assert decode(cores, 20, beside(n_cores)) == [n_cores] * 20
    numbers = decode(cores, 200, beside(n_free))
    assert sum(n > n_free for n in numbers) < 20, numbers
    assert numbers.count(n_free) > 100, numbers
    assert set(decode(cores, 300, beside(n_cores))[-20:]) == {n_cores}


def test_without_other_programs_nothing_is_tried() -> None:
    cores = make()
    for i in range(400):  # a decode takes twice as long now and then, and more and more tokens precede
        cores.decoded(1 + i % 3, (0.1 + i / 2000) * (2 if i % 10 == 0 else 1))
        assert cores.n == 2


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int | None]:
    """What is found if so many threads run at each look, one of them this one."""

    def look(*running: int | str, n_cpus: int = 2, quota: float | None = None) -> int | None:
        contents = iter(running)
        path = tmp_path / "loadavg"

        def show(_: float = 0.0) -> None:
            path.write_text(f"0.50 0.40 0.30 {next(contents, 9)}/123 4567\n")

        show()
        monkeypatch.setattr(free_cores, "_LOADAVG", path)
        monkeypatch.setattr(free_cores, "allowed_cores", lambda: frozenset(range(n_cpus)))
        monkeypatch.setattr(free_cores, "cpu_quota", lambda: quota)
        monkeypatch.setattr(free_cores, "os", SimpleNamespace(cpu_count=lambda: 2))
        monkeypatch.setattr(free_cores, "time", SimpleNamespace(sleep=show))
        return waiting_threads()

    return look


def test_threads_that_want_to_compute_right_now(looks: Callable[..., int | None]) -> None:
    assert looks(1) == 0
    assert looks(3, 3, 3, 3) == 2
    assert looks(3, 4, 2, 3) == 1, "one computes for a moment"
    assert looks(5, 1) == 0

"""When the load is read, and whether the threads follow it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from duo.engine import cores_in_use
from duo.engine.cores_in_use import CoresInUse
from duo.engine.load import Moment


class System:
    """Two cores, on which others use `n_others` and `n_waiting` threads want to compute; None: it does not tell."""

    def __init__(self) -> None:
        self.now = 100.0
        self.n_others: float | None = 0.0
        self.n_waiting: int | None = 0
        self.n_looks = self.n_readings = 0

    def moment(self) -> Moment:
        return Moment(self.now, None if self.n_others is None else 0.0, 0.0)

    def others(self, since: Moment, until: Moment) -> float:
        assert until.now - since.now >= 0.1, "shorter than the resolution"
        self.n_readings += 1
        return self.n_others or 0.0

    def waiting(self) -> int | None:
        self.n_looks += 1
        return self.n_waiting

    def decode(self, cores: CoresInUse, n: int, seconds: float = 0.05) -> int:
        for _ in range(n):
            self.now += seconds
            cores.decoded(1, seconds)
        return cores.limit


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    made = System()
    load = SimpleNamespace(
        moment=made.moment, others=made.others, waiting=made.waiting, tolerated=lambda _: 0.25, Moment=Moment
    )
    monkeypatch.setattr(cores_in_use, "load", load)
    monkeypatch.setattr(cores_in_use, "usable_cores", lambda: 2)
    monkeypatch.setattr(cores_in_use, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_the_first_decode_already_leaves_others_their_cores(system: System) -> None:
    system.n_waiting = 1
    cores = CoresInUse()
    cores.begin()
    assert cores.limit == 1


def test_the_load_is_read_while_decoding_but_not_at_every_decode(system: System) -> None:
    cores = CoresInUse()
    cores.begin()
    assert system.decode(cores, 40) == 0
    assert 5 <= system.n_readings <= 10
    system.n_others = 1.0
    assert system.decode(cores, 8) == 1
    system.n_others = 0.0
    assert system.decode(cores, 16) == 0
    assert cores.fewest == 1


def test_a_text_that_follows_at_once_continues_with_what_is_known(system: System) -> None:
    cores = CoresInUse()
    cores.begin()
    system.n_waiting, system.now = 1, system.now + 0.5
    cores.begin()
    assert (cores.limit, system.n_looks) == (0, 1)
    system.now += 60
    cores.begin()
    assert (cores.limit, system.n_looks) == (1, 2)


def test_what_others_used_since_the_last_text_counts_if_nothing_newer_is_known(system: System) -> None:
    system.n_waiting = None
    cores = CoresInUse()
    cores.begin()
    system.n_others, system.now = 1.0, system.now + 60
    cores.begin()
    assert cores.limit == 1


def test_without_figures_of_the_system_the_times_tell(system: System) -> None:
    system.n_others = system.n_waiting = None
    cores = CoresInUse()
    cores.begin()
    assert system.decode(cores, 20) == 0
    assert system.decode(cores, 4, seconds=0.5) == 1


def test_numbers_that_the_user_has_chosen_stay(system: System) -> None:
    cores = CoresInUse(follows=False)
    cores.begin()
    system.n_others = 1.0
    assert system.decode(cores, 20) == 0
    assert cores.fewest == 1, "what would be faster is known"

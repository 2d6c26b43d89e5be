"""How many cores the decodes use beside other programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duo.engine.free_cores import FreeCores

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


def test_one_slow_decode_is_enough() -> None:
    cores = make()
    cores.decoded(1, 2.0)
    cores.used(0.67, 2.0)
    assert cores.n == 1


def test_what_is_left_is_used_as_soon_as_others_have_ended() -> None:
    cores = make(8)
    assert read(cores, 3.0, 0.4) == 5
    assert read(cores, 0.9, 0.2) == 5, "they may pause"
    assert read(cores, 0.9, 0.2) == 7
    assert read(cores, 0.1, 0.4) == 8


def test_a_pause_of_others_is_no_end() -> None:
    cores = make()
    cores.begin(2)
    for _ in range(10):
        assert read(cores, 0.1, 0.2) == 1
        assert read(cores, 1.3, 0.2) == 1


@pytest.mark.parametrize(("n_others", "every"), [(0.2, 1), (0.5, 2), (0.7, 3)])
def test_what_runs_for_a_moment_disturbs_nothing(n_others: float, every: int) -> None:
    cores = make()
    for i in range(60):
        assert read(cores, n_others if i % every == 0 else 0.0, READ_S) == 2


def test_beside_little_load_the_times_decide() -> None:
    for slower, n in ((0.5, 1), (2.0, 2)):
        cores = make()
        for _ in range(20):
            read(cores, 0.4, READ_S)
            decode(cores, 4, lambda n, slower=slower: 0.05 if n == 2 else 0.05 * slower)  # type: ignore[misc]
        assert cores.n == n


def test_fewer_cores_that_were_slower_are_tried_again_beside_more_load() -> None:
    cores = make()
    for _ in range(20):
        read(cores, 0.4, READ_S)
        decode(cores, 4, lambda n: 0.05 / n)
    assert cores.n == 2
    assert read(cores, 0.6, 2.0) == 2, "about the same"
    assert read(cores, 1.0, 0.4) == 1


def test_times_before_the_load_are_no_reason_to_return() -> None:
    cores = make()
    decode(cores, 20, lambda _: 0.02)
    read(cores, 1.0, 0.2)
    assert decode(cores, 20, lambda _: 0.04) == [1] * 20


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


def test_what_is_slow_on_any_number_of_cores_is_not_tried_forever() -> None:
    cores = make()
    decode(cores, 20, lambda _: 0.1)
    numbers = decode(cores, 500, lambda n: 1.0 if n == 2 else 1.2)
    assert 1 in numbers
    assert numbers.count(1) < 50


def test_times_of_different_batches_are_not_compared() -> None:
    cores = make()
    decode(cores, 20, lambda _: 0.1)
    decode(cores, 20, lambda _: 0.8, n_tokens=16)
    assert cores.n == 2

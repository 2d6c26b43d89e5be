"""The policy on random machines, against the best that any fixed settings could reach there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import constant, replay
from tests.unit.spec.machines import N_AHEAD, N_MAX, random_case
from tests.unit.spec.renewal import best_fixed, best_turns

N_TOKENS = 20_000
SEEDS = range(30)


@dataclass(frozen=True, slots=True)
class Shares:
    """Rates of the policy as shares of others."""

    beside: float  # overlapped only, of the best fixed (k, wait)
    best: float  # left to itself, of the best of all
    plain: float  # left to itself, of the target alone


@cache
def shares(seed: int) -> Shares:
    case = random_case(seed)
    machine, acceptance = case.machine, case.acceptance
    fixed, plain = best_fixed(machine, acceptance)[0], 1 / machine.target_s[0]
    overlapped = Policy(N_MAX, N_AHEAD, (Schedule.ASYNC,))
    beside = replay(overlapped, machine, constant(acceptance, seed), N_TOKENS).rate
    free = replay(Policy(N_MAX, N_AHEAD), machine, constant(acceptance, seed + 1), N_TOKENS).rate
    return Shares(beside / fixed, free / max(fixed, best_turns(machine, acceptance)), free / plain)


def below(bar: float, share: Callable[[Shares], float]) -> dict[int, float]:
    """Seeds of the machines where it is below the bar, and what it is there."""
    return {seed: share(shares(seed)) for seed in SEEDS if share(shares(seed)) < bar}


@pytest.mark.parametrize(
    "share", [lambda found: found.beside, lambda found: found.best], ids=["overlapped", "left to itself"]
)
def test_on_random_machines_it_is_as_good_as_the_best_fixed_settings(share: Callable[[Shares], float]) -> None:
    assert len(below(0.97, share)) <= 0.1 * len(SEEDS), below(0.97, share)
    assert not below(0.90, share)


def test_on_random_machines_it_is_never_much_slower_than_the_target_alone() -> None:
    assert not below(0.97, lambda found: found.plain)


@pytest.mark.parametrize(
    "seed",
    [
        # It reads the whole text again, twice, after freak forecasts: see benchmarks/NOTES.md.
        pytest.param(101, marks=pytest.mark.xfail(reason="reaches 0.949", strict=False)),
        121,
        230,
    ],
)
def test_a_draft_that_brings_nothing_is_not_taken_up_again_and_again(seed: int) -> None:
    """Where duo lost most against the target alone among 400 random machines."""
    assert shares(seed).plain >= 0.97


@pytest.mark.parametrize("seed", [44, pytest.param(106, marks=pytest.mark.xfail(reason="reaches 0.894", strict=False))])
def test_a_size_that_is_faster_than_a_smaller_one_is_found(seed: int) -> None:
    """Where duo lost most against fixed settings, both at the same time, among 400 random machines."""
    assert shares(seed).beside >= 0.90

"""A draft that is good in one part of the text and useless in another, and one that becomes slow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

import pytest

from duo.spec.policy import Policy
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Guesses, Machine, constant, replay
from tests.unit.spec.machines import APART, FAST_DRAFT, N_AHEAD, N_MAX, TWO_CORES
from tests.unit.spec.renewal import best_fixed, best_turns

PHASE = 4000  # tokens
MACHINES = pytest.mark.parametrize("machine", [APART, FAST_DRAFT, TWO_CORES], ids=["apart", "fast draft", "two cores"])

Draft = Callable[[Policy, Machine], Guesses]


def phased(shares: Sequence[float], seed: int) -> Draft:
    """A draft that guesses right as often as `shares` says for each phase of the text."""

    def guesses(policy: Policy, machine: Machine) -> Guesses:
        dice = random.Random(seed)
        while True:
            yield 1.0, dice.random() < shares[min(policy.chooser.n_tokens // PHASE, len(shares) - 1)]

    return guesses


def stalling(factor: float) -> Draft:
    """A good draft that takes `factor` times as long from the second phase on."""

    def guesses(policy: Policy, machine: Machine) -> Iterator[tuple[float, bool]]:
        slow = replace(machine, draft_s=factor * machine.draft_s, beside_draft_s=factor * machine.beside_draft_s)
        good = constant(0.8)
        while policy.chooser.n_tokens < PHASE:
            yield next(good)
        for field in fields(Machine):
            object.__setattr__(machine, field.name, getattr(slow, field.name))  # it is frozen for all others
        yield from good

    return guesses


def seconds_of(machine: Machine, draft: Draft, ends: Sequence[int], schedules: Sequence[Schedule] = ALL) -> list[float]:
    """Time for each part of the text. A replay is the same each time, so its parts are the differences of several."""
    times = [0.0]
    for end in ends:
        policy, own = Policy(N_MAX, N_AHEAD, schedules), replace(machine)
        times.append(replay(policy, own, draft(policy, own), end).seconds)
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize(
    ("machine", "bar"),
    [(APART, 0.95), (FAST_DRAFT, 0.95), (TWO_CORES, 0.93)],  # the last can ask such a draft but seldom
    ids=["apart", "fast draft", "two cores"],
)
@pytest.mark.parametrize("shares", [(0.0, 0.85, 0.0), (0.05, 0.6, 0.05)])
def test_a_hostile_draft_that_becomes_good_and_hostile_again(
    machine: Machine, bar: float, shares: tuple[float, ...]
) -> None:
    """In each phase nearly the best rate; before the good one the draft has to read what it has missed."""
    for seed in range(2):
        found = seconds_of(machine, phased(shares, seed), [PHASE, 2 * PHASE, 3 * PHASE])
        reading_s = [0.0, PHASE * machine.read_s, 0.0]
        for share, seconds, extra_s in zip(shares, found, reading_s, strict=True):
            best = max(best_fixed(machine, share)[0], best_turns(machine, share))
            assert PHASE / best + extra_s >= bar * seconds


@MACHINES
def test_a_draft_that_stalls_soon_leaves_the_target_alone(machine: Machine) -> None:
    """Within 256 tokens nearly all that could be lost is lost; after them it is as without a draft."""
    plain_s = machine.target_s[0]
    good, first, rest = seconds_of(machine, stalling(20), [PHASE, PHASE + 256, 2 * PHASE])
    assert PHASE * plain_s > 1.1 * good, "before, it was worth it"
    assert 256 * plain_s >= 0.7 * first
    assert (PHASE - 256) * plain_s >= 0.96 * rest


def test_a_draft_that_stalls_beside_the_target_is_not_waited_for() -> None:
    _, stalled = seconds_of(APART, stalling(20), [PHASE, 2 * PHASE], (Schedule.ASYNC,))
    assert PHASE * APART.target_s[0] >= 0.97 * stalled

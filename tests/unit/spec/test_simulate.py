"""Replays on machines of known costs."""

import pytest

from duo.spec.policy import Policy
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Machine, constant, replay
from tests.unit.spec.machines import (
    APART,
    N_AHEAD,
    N_MAX,
    TWO_CORES,
    Fixed,
    concurrent_rate,
    sequential_rate,
)  # fmt: skip

SLOW_DRAFT = Machine([0.1] * 9, 0.15, [0.1] * 9, 0.15)


@pytest.mark.parametrize("schedule", ALL)
def test_replay_accounts_for_every_token_step_and_second(schedule: Schedule) -> None:
    found = replay(Policy(N_MAX, N_AHEAD, (schedule,)), APART, constant(0.8), 1000)
    assert 1000 <= found.tokens <= 1000 + N_MAX
    assert found.tokens_in == {other: found.tokens if other is schedule else 0 for other in ALL}
    assert found.tokens <= sum(k + 1 for k in found.n_verified)
    decodes_s = sum(APART.target_s[k] for k in found.n_verified)
    assert found.seconds == pytest.approx(decodes_s + found.waited_s)
    assert found.rate == pytest.approx(found.tokens / found.seconds)
    if schedule is Schedule.OFF:
        assert set(found.n_verified) == {0}
        assert found.seconds == pytest.approx(1000 * 0.490)


@pytest.mark.parametrize(
    ("machine", "k", "wait", "schedule"),
    [
        *((APART, k, wait, Schedule.ASYNC) for k, wait in ((0, 0), (3, 1), (6, 4))),
        (SLOW_DRAFT, 4, 2, Schedule.ASYNC),  # its late token is of no use
        *((TWO_CORES, k, k, Schedule.SYNC) for k in (1, 8)),
    ],
)
def test_replay_with_fixed_settings_reaches_the_rate_of_the_formula(
    machine: Machine, k: int, wait: int, schedule: Schedule
) -> None:
    found = replay(Fixed(k, wait, schedule), machine, constant(0.8), 5000).rate
    sequential = schedule is Schedule.SYNC
    formula = sequential_rate(machine, 0.8, k) if sequential else concurrent_rate(machine, 0.8, k, wait)
    assert found == pytest.approx(formula, rel=0.04)

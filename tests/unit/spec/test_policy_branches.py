"""How many outcomes a policy has prepared, and what it learns about them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from duo.spec.constants import DEFAULT
from duo.spec.pair import Machine
from duo.spec.policy import REJECTION, Policy
from duo.spec.schedule import Schedule
from tests.unit.spec.machines import N_AHEAD, N_MAX, times

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
RANKS = DEFAULT.ranks
_CARDS = times({1: 25, 2: 26, 4: 29, 8: 38})
CHEAP = Machine(_CARDS, 0.008, _CARDS, 0.008, branch_s=[0.008 + 0.0002 * n for n in range(9)])
DEAR = replace(CHEAP, branch_s=[0.008 * (n + 1) for n in range(9)])


def known(
    machine: Machine,
    schedules: tuple[Schedule, ...] = (ASYNC,),
    mode: str = "greedy",
    *,
    branches: int | None = None,
    remote: bool = False,
) -> Policy:
    """A policy that has learned the machine's costs, after one step."""
    made = Policy(N_MAX, N_AHEAD, schedules, separate_devices=True, branches=branches, remote=remote)
    made.begin(0, mode=mode)
    for n, seconds in enumerate(machine.concurrent_target_s, 1):
        made.concurrent.add_target(n, seconds)
        made.alone.add_target(n, seconds)
    made.learn_warmup(1, machine.draft_s)
    for n, seconds in enumerate(machine.branch_s[1:], 2):
        made.learn_branches(n, seconds / machine.draft_s)
    made.learn_scores([(1.0, i % 5 > 0) for i in range(100)])
    made.begin(0, mode=mode)
    return made


def test_as_many_as_pay_are_prepared() -> None:
    assert known(CHEAP).lookahead().n_branches in (4, 8)
    assert known(DEAR).lookahead().n_branches == 0
    assert known(CHEAP).rate > 1.1 * known(DEAR).rate
    assert known(CHEAP).lookahead().ranks == RANKS


@pytest.mark.parametrize("n", [0, 3, 8])
def test_a_number_that_was_given_is_kept(n: int) -> None:
    assert known(DEAR, branches=n).lookahead().n_branches == n


@pytest.mark.parametrize("branches", [None, 8])
def test_there_are_none_where_they_are_impossible(branches: int | None) -> None:
    impossible = (
        known(CHEAP, (SYNC,), branches=branches),
        known(CHEAP, mode=REJECTION, branches=branches),
        known(CHEAP, branches=branches, remote=True),
        Policy(N_MAX, N_AHEAD, (ASYNC,), branches=0),
    )
    assert [made.lookahead().n_branches for made in impossible] == [0, 0, 0, 0]


def test_where_the_wrong_ranks_come_there_are_none() -> None:
    made = known(CHEAP)
    made.learn_ranks([-1] * 200)
    made.begin(0, mode="greedy")
    assert made.lookahead().n_branches == 0
    made.learn_ranks([0] * 200)
    made.begin(0, mode="greedy")
    assert made.lookahead().n_branches > 0


def test_several_sequences_do_not_disturb_the_time_for_one() -> None:
    made = known(CHEAP)
    for _ in range(20):
        made.learn_draft(1, 0.5, 9)
    assert made.costs.draft_s == pytest.approx(0.008)
    assert made.costs.draft_time(0.0, 9) > 0.1
    assert made.alone.draft_time(0.0, 9) == pytest.approx(CHEAP.branch_s[8], rel=0.01)


def test_statistics_and_another_run() -> None:
    made = known(CHEAP)
    made.learn_ranks([0, 2, -1])
    found = made.statistics()
    assert found.n_branches == made.lookahead().n_branches
    assert found.ranks == tuple(made.lookahead().ranks)
    assert found.draft_ms_by_sequences == pytest.approx([1000 * s for s in CHEAP.branch_s])
    another = Policy(N_MAX, N_AHEAD, (ASYNC,), separate_devices=True, branches=None)
    another.restore(json.loads(json.dumps(made.state())))
    another.begin(0, mode="greedy")
    assert another.lookahead().n_branches > 0
    assert another.lookahead().ranks == pytest.approx(made.lookahead().ranks)
    assert Policy(N_MAX, N_AHEAD).statistics().draft_ms_by_sequences == []


# In replays


def test_a_text_without_branches_does_not_end_them() -> None:
    """Rejection sampling has none; the next text has as many as before."""
    made = known(CHEAP)
    n = made.lookahead().n_branches
    for mode, found in (("rejection", 0), ("greedy", n)):
        made.begin(0, mode=mode)
        assert made.lookahead().n_branches == found, mode

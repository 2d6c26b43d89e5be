"""How many outcomes a policy has prepared, and what it learns about them."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import pytest

from duo.spec import forecast
from duo.spec.constants import DEFAULT
from duo.spec.policy import REJECTION, Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine, constant, replay
from tests.unit.spec.machines import N_AHEAD, N_MAX, TWO_CORES, foresee, times

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
    made = Policy(N_MAX, N_AHEAD, schedules, apart=True, branches=branches, remote=remote)
    made.begin(0, mode=mode)
    for n, seconds in enumerate(machine.beside_target_s, 1):
        made.beside.add_target(n, seconds)
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


def test_a_small_gain_is_not_sought() -> None:
    rates = {}
    for growth in (0.18, 0.2, 0.22, 0.24):
        made = known(replace(CHEAP, branch_s=[0.008 * (1 + growth * n) for n in range(9)]))
        costs = _CARDS, 0.008, made.calibration.mean, N_AHEAD
        best = max(
            forecast.overlapped(
                *costs,
                branches=forecast.BranchModel(n, [made.beside.draft_time(0.0, i) for i in range(1, n + 2)], RANKS),
            ).rate
            for n in (1, 2, 4, 8)
        )
        gain = best / forecast.overlapped(*costs).rate
        assert (made.lookahead().n_branches > 0) == (gain >= 1.02)
        rates[growth] = gain
    assert any(1 < gain < 1.02 for gain in rates.values()), rates


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


def test_numbers_are_compared_again_only_after_a_change() -> None:
    made = known(CHEAP)
    with mock.patch.object(forecast, "overlapped", wraps=forecast.overlapped) as solved:
        made.begin(0, mode="greedy")
        assert solved.call_count == 1, "the forecast itself"
        made.learn_scores([(1.0, False)] * 20)
        made.begin(0, mode="greedy")
        assert solved.call_count == 1 + 1 + 5


def test_several_sequences_do_not_disturb_the_time_for_one() -> None:
    made = known(CHEAP)
    for _ in range(20):
        made.learn_draft(1, 0.5, 9)
    assert made.costs.draft_s == pytest.approx(0.008)
    assert made.costs.draft_time(0.0, 9) > 0.1
    assert made.alone.draft_time(0.0, 9) == pytest.approx(CHEAP.branch_s[8], rel=0.01)


def test_a_warm_up_tells_each_number_of_sequences_once() -> None:
    made = Policy(N_MAX, N_AHEAD, branches=None)
    made.learn_warmup(1, 0.01)
    made.learn_branches(5, 2.0)
    made.learn_branches(5, 900.0)
    assert made.alone.draft_time(0.0, 5) == 0.02
    assert [made.knows_draft(1, n) for n in (1, 2, 5)] == [True, False, True]


def test_statistics_and_another_run() -> None:
    made = known(CHEAP)
    made.learn_ranks([0, 2, -1])
    found = made.statistics()
    assert found.n_branches == made.lookahead().n_branches
    assert found.ranks == tuple(made.lookahead().ranks)
    assert found.draft_ms_by_sequences == pytest.approx([1000 * s for s in CHEAP.branch_s])
    another = Policy(N_MAX, N_AHEAD, (ASYNC,), apart=True, branches=None)
    another.restore(json.loads(json.dumps(made.state())))
    another.begin(0, mode="greedy")
    assert another.lookahead().n_branches > 0
    assert another.lookahead().ranks == pytest.approx(made.lookahead().ranks)
    assert Policy(N_MAX, N_AHEAD).statistics().draft_ms_by_sequences == []


# In replays


def test_auto_is_as_good_as_the_best_number() -> None:
    for machine in (CHEAP, DEAR):
        rates = {n: foresee(machine, ASYNC, constant(0.8), N_MAX, 6000, branches=n).rate for n in (0, 1, 2, 4, 8, None)}
        assert rates[None] >= 0.97 * max(rates.values())


def test_on_shared_cores_there_are_none_after_the_first_text() -> None:
    machine = replace(TWO_CORES, branch_s=[TWO_CORES.beside_draft_s * (n + 1) for n in range(9)])
    made = Policy(N_MAX, N_AHEAD, (ASYNC,), branches=None)
    replay(made, machine, constant(0.8), 300)
    assert replay(made, machine, constant(0.8, 1), 300).n_opened == 0
    assert replay(Policy(N_MAX, N_AHEAD, (ASYNC,), branches=2), machine, constant(0.8), 300).n_opened > 0


def test_ranks_are_learned_while_nothing_is_prepared() -> None:
    made = Policy(N_MAX, N_AHEAD, (ASYNC,), branches=None)
    replay(made, DEAR, constant(0.8), 2000, ranks=(0.2, 0.3, 0.4))
    assert made.calibration.ranks == pytest.approx((0.2, 0.3, 0.4), abs=0.15)


def test_a_forecast_from_a_run_has_its_branches() -> None:
    made = Policy(N_MAX, N_AHEAD, (ASYNC,), apart=True, branches=None)
    found = replay(made, CHEAP, constant(0.8), 3000)
    assert found.n_prepared > 100
    assert made.forecasts(0.8)[ASYNC].rate == pytest.approx(found.rate, rel=0.06)
    none = Policy(N_MAX, N_AHEAD, (ASYNC,), apart=True, branches=0)
    assert found.rate > 1.1 * replay(none, CHEAP, constant(0.8), 3000).rate


def test_a_text_without_branches_does_not_end_them() -> None:
    """Rejection sampling has none; the next text has as many as before."""
    made = known(CHEAP)
    n = made.lookahead().n_branches
    for mode, found in (("rejection", 0), ("greedy", n)):
        made.begin(0, mode=mode)
        assert made.lookahead().n_branches == found, mode


def test_a_profile_with_too_many_sequences_is_damaged() -> None:
    state = known(CHEAP).state()
    for key in ("1", "10", str(2**31 - 1)):
        with pytest.raises(ValueError, match="sequences"):
            known(CHEAP).restore({**state, "costs": {"0": [{"branch_s": {key: [1.0, 0.1]}}, {}]}})

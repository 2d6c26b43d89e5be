import math

import pytest

from duo.spec.policy import Calibration, CostModel, Decision, Mean, Policy, Rest, StepCost

SURE, DOUBTFUL = 9.0, 0.0


def policy(target_s: dict[int, float], n_max: int = 8, draft_s: float = 0.005) -> Policy:
    """A policy that has measured T(n) and t_d as given and a rate of one token per T(1)."""
    made = Policy(n_max, 16)
    for n, seconds in target_s.items():
        for _ in range(3):
            made.costs.add_target(n, seconds)
    for _ in range(Rest.FIRST_STEPS):
        made.learn_step(1, StepCost(0, target_s[1], target_s[1]))
    made.learn_draft(draft_s)
    return made


def test_before_anything_is_measured_it_verifies_what_is_ready() -> None:
    assert Policy(4, 16).decide([DOUBTFUL] * 9, 100, math.inf) == Decision(4)
    assert Policy(4, 16).decide([], 100, 0.001) == Decision(0), "and does not wait"


def test_verifies_more_of_what_is_sure() -> None:
    flat = {n: 0.010 + 0.003 * (n - 1) for n in range(1, 10)}
    sure = policy(flat).decide([SURE] * 8, 100, math.inf)
    doubtful = policy(flat).decide([DOUBTFUL] * 8, 100, math.inf)
    assert sure.n_verify == 8
    assert doubtful.n_verify < sure.n_verify


def test_a_size_that_costs_more_than_it_brings_is_left_out() -> None:
    """Two cost twice one, four cost little more than two: one or none is right, then as many as there are."""
    cliff = {1: 0.010, 2: 0.020, 3: 0.020, 4: 0.021, 5: 0.022}
    assert policy(cliff).decide([1.2], 100, math.inf).n_verify == 0
    assert policy(cliff).decide([1.2] * 4, 100, math.inf).n_verify == 4


@pytest.mark.parametrize("n_room", [1, 2, 3])
def test_never_more_than_the_text_has_room_for(n_room: int) -> None:
    decision = policy({1: 0.010, 9: 0.011}).decide([SURE] * 8, n_room, 0.0)
    assert decision == Decision(n_room - 1)


def test_never_more_than_asked_for() -> None:
    assert policy({1: 0.010, 9: 0.011}, n_max=3).decide([SURE] * 8, 100, math.inf).n_verify == 3
    assert policy({1: 0.010, 9: 0.011}, n_max=0).decide([SURE] * 8, 100, 0.0) == Decision(0)


def test_waits_for_a_fast_draft_and_not_for_a_slow_one() -> None:
    slow_target = {1: 0.490, 2: 0.495, 5: 0.540}
    fast = policy(slow_target, draft_s=0.025).decide([], 100, next_s=0.025)
    assert fast.wait_s > 0
    assert policy(slow_target, draft_s=0.8).decide([], 100, next_s=0.8).wait_s == 0
    assert policy(slow_target, draft_s=0.025).decide([], 100, next_s=math.inf).wait_s == 0, "there is none"


def test_the_draft_runs_ahead_while_its_guesses_may_survive() -> None:
    made = policy({1: 0.010})
    assert made.may_draft([])
    assert made.may_draft([SURE] * 15)
    assert not made.may_draft([SURE] * 16), "as far as it was told"
    assert not made.may_draft([DOUBTFUL] * 4)


def test_calibration_learns_what_a_confidence_is_worth_and_forgets() -> None:
    calibration = Calibration()
    other = calibration.probability(SURE)
    for _ in range(100):
        calibration.add(DOUBTFUL, accepted=True)
    assert calibration.probability(DOUBTFUL) > 0.9
    assert calibration.probability(SURE) == other
    for _ in range(200):
        calibration.add(DOUBTFUL, accepted=False)
    assert calibration.probability(DOUBTFUL) < 0.1


def test_costs_of_an_untried_size_are_those_of_the_next_smaller() -> None:
    costs = CostModel()
    assert costs.target_s(3) == 0
    costs.add_target(2, 0.02)
    assert costs.target_s(5) == 0.02
    assert costs.target_s(1) == 0


def test_one_interruption_does_not_spoil_a_size() -> None:
    costs = CostModel()
    costs.add_target(2, 0.9)
    costs.add_target(2, 0.02)
    assert costs.target_s(2) == pytest.approx(0.02)
    for _ in range(5):
        costs.add_target(2, 0.02)
    costs.add_target(2, 9.0)
    assert costs.target_s(2) < 0.03


def test_mean_weighs_the_first_values_alike() -> None:
    mean = Mean(weight=0.1)
    for value in (1, 2, 3):
        mean.add(value)
    assert mean.value == 2


def begun() -> Rest:
    """After the first rest, in which the target took 10 ms per token."""
    rest = Rest()
    for _ in range(Rest.FIRST_STEPS):
        rest.step(0, 1, 0.010)
    return rest


def length_of(rest: Rest) -> int:
    """How many steps it lasts from now on."""
    n = 0
    while rest.resting:
        rest.step(0, 1, 0.010)
        n += 1
    return n


def test_the_draft_reads_the_prompt_and_rests_to_let_the_target_be_measured() -> None:
    rest = Rest()
    assert not rest.resting, "before the first step"
    rest.step(0, 1, 0.010)
    assert rest.resting
    rest.step(3, 2, 0.010)
    assert length_of(rest) == Rest.FIRST_STEPS - 1, "a step with candidates left over tells nothing"


def test_a_draft_that_pays_is_never_sent_to_rest() -> None:
    rest = begun()
    for _ in range(500):
        rest.step(2, 2, 0.018)
        assert not rest.resting


def test_a_draft_that_slows_the_target_rests_longer_each_time() -> None:
    rest, trials = begun(), 0
    rests: list[int] = []
    while len(rests) < 4:
        rest.step(1, 1, 0.012)
        trials += 1
        if rest.resting:
            rests.append(length_of(rest))
    assert rests == [64, 128, 256, 256], "but not for ever: texts change"
    assert trials == 4 * Rest.TRIAL_STEPS


def test_a_resting_draft_does_not_draft_and_is_not_waited_for() -> None:
    made = policy({1: 0.490, 2: 0.495}, draft_s=0.025)
    assert made.may_draft([])
    while not made.rest.resting:
        made.learn_step(1, StepCost(1, 0.6, 0.6))
    assert not made.may_draft([])

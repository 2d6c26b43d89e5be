import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.policy import REJECTION, Decision, Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Machine, constant, replay
from tests.unit.spec.machines import APART, FAST_DRAFT, N_AHEAD, TWO_CORES
from tests.unit.spec.policies import CLIFF, FLAT, SLOW_TARGET, STEEP, policy, scores

SURE, DOUBTFUL = 9.0, 0.0
EASY = {1: 0.1, 2: 0.12, 3: 0.13}
ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


def test_before_anything_is_measured_it_decodes_alone() -> None:
    for schedule in ALL:
        made = Policy(4, N_AHEAD, (schedule,))
        assert made.rate == 0
        assert made.decide([SURE] * 9, 100, 0.1) == Decision(0)
        assert made.decide([], 100, 0.001) == Decision(0), "and does not wait"


def test_in_turns_it_asks_for_a_candidate_as_soon_as_it_knows_the_target() -> None:
    made = Policy(4, N_AHEAD)
    made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert made.schedule is SYNC
    assert made.decide([], 100, made.costs.draft_s).wait_s is not None


def test_verifies_more_of_what_is_sure() -> None:
    sure = policy(FLAT).decide([SURE] * 8, 100, math.inf)
    doubtful = policy(FLAT).decide([DOUBTFUL] * 8, 100, math.inf)
    assert sure == Decision(8)
    assert doubtful.n_verify < sure.n_verify


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
@pytest.mark.parametrize("target_s", [SLOW_TARGET, FLAT, STEEP, CLIFF], ids=["slow", "flat", "steep", "cliff"])
def test_more_acceptance_never_means_fewer_candidates(target_s: dict[int, float], schedule: Schedule) -> None:
    found = [
        policy(target_s, 0.002, share / 20, schedules=(schedule,)).decide([1.0] * 8, 100, math.inf).n_verify
        for share in range(21)
    ]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] >= 4 or target_s is STEEP


def test_verifies_none_when_none_helps() -> None:
    for next_s in (0.001, math.inf):
        assert policy(SLOW_TARGET, acceptance=0.0).decide([1.0] * 8, 100, next_s) == Decision(0)
        assert policy(STEEP, acceptance=0.9).decide([1.0] * 8, 100, next_s) == Decision(0)


def test_a_size_that_costs_more_than_it_brings_is_left_out() -> None:
    """Two cost twice one, four cost little more than two: one or none is right, then as many as there are."""
    assert policy(CLIFF).decide([1.2], 100, math.inf).n_verify == 0
    assert policy(CLIFF).decide([1.2] * 4, 100, math.inf).n_verify == 4


def test_waits_for_a_fast_draft_and_not_for_a_slow_one() -> None:
    fast = policy(SLOW_TARGET, 0.025)
    wait_s = fast.decide([], 100, next_s=0.025).wait_s
    assert wait_s is not None
    assert 0.025 < wait_s <= 0.050, "until it should be there, and no longer than one more would take"
    assert policy(SLOW_TARGET, 0.8).decide([], 100, next_s=0.8) == Decision(0)
    assert fast.decide([], 100, next_s=math.inf) == Decision(0), "there is none"


def test_waits_only_until_there_are_enough() -> None:
    made = policy(SLOW_TARGET, 0.1, acceptance=0.8)
    waits = [made.decide([1.0] * n, 100, 0.1).wait_s is not None for n in range(9)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0]
    assert not waits[8]


def test_waits_for_what_is_nearly_there_rather_than_for_what_was_just_begun() -> None:
    made = policy(SLOW_TARGET, 0.15, acceptance=0.8)
    n_waits = [sum(made.decide([1.0] * n, 100, next_s).wait_s is not None for n in range(9)) for next_s in (0.01, 0.15)]
    assert n_waits[0] > n_waits[1]


def test_does_not_wait_for_a_candidate_after_a_hopeless_one() -> None:
    made = policy(SLOW_TARGET, 0.025, acceptance=0.8)
    made.learn_scores(scores(0.0, 40, DOUBTFUL))
    made.learn_scores(scores(0.8))
    assert made.decide([1.0], 100, 0.025).wait_s is not None
    assert made.decide([DOUBTFUL], 100, 0.025) == Decision(0)


def looking_back(mode: str) -> Policy:
    made = policy(CLIFF, 0.002, 0.6, mode=mode)
    made.learn_scores([*scores(0.05, 200, 0.1), *scores(0.95, 200, 10.0)])
    return made


LOOKING_BACK = {in_order: looking_back(REJECTION if in_order else "coupled") for in_order in (False, True)}


def chosen(confidences: list[float], *, in_order: bool) -> int:
    """How many of these candidates are verified if no other will come."""
    made = LOOKING_BACK[in_order]
    assert made.in_order == in_order
    return made.decide(confidences, 100, math.inf).n_verify


ASSORTED = st.lists(st.sampled_from([0.1, 1.0, 10.0]), max_size=6)


@given(before=ASSORTED, first=ASSORTED, second=ASSORTED)
def test_in_order_nothing_that_comes_later_decides_on_a_candidate(
    before: list[float], first: list[float], second: list[float]
) -> None:
    taken = [min(chosen(before + after, in_order=True), len(before)) for after in (first, second)]
    assert taken[0] == taken[1]


def test_otherwise_it_does() -> None:
    """Two cost as much as five: one that is in doubt is taken along if those after it are good, and not for itself."""
    assert chosen([1.0], in_order=False) == 0
    assert chosen([1.0, 10.0, 10.0, 10.0], in_order=False) == 4


def test_in_order_candidates_are_taken_as_long_as_they_are_worth_it() -> None:
    assert chosen([10.0, 10.0, 10.0, 10.0, 0.1, 10.0], in_order=True) == 4
    assert chosen([0.1, 10.0, 10.0], in_order=True) == 0
    assert LOOKING_BACK[True].decide([10.0], 100, 0.0005).wait_s is not None, "another is worth waiting for"


@pytest.mark.parametrize("schedule", ALL)
@given(
    confidences=st.lists(st.floats(0, 20), max_size=N_AHEAD),
    n_room=st.integers(1, 20),
    next_s=st.floats(0, 1) | st.just(math.inf),
    n_max=st.integers(0, 8),
    acceptance=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_never_more_than_is_ready_asked_for_or_fits(
    schedule: Schedule, confidences: list[float], n_room: int, next_s: float, n_max: int, acceptance: float
) -> None:
    made = policy(CLIFF, 0.002, acceptance, n_max, (schedule,))
    decision = made.decide(confidences, n_room, next_s)
    bound = min(n_max, n_room - 1)
    assert 0 <= decision.n_verify <= min(len(confidences), bound)
    if decision.wait_s is not None:
        assert len(confidences) < bound
        assert next_s < decision.wait_s <= next_s + made.costs.draft_s < math.inf
    if made.schedule is OFF or bound <= 0:
        assert decision == Decision(0)


def test_the_draft_runs_ahead_while_its_guesses_may_survive() -> None:
    made = policy(SLOW_TARGET)
    assert made.may_draft([])
    assert made.may_draft([SURE] * (N_AHEAD - 1))
    assert not made.may_draft([SURE] * N_AHEAD), "as far as it was told"
    made.learn_scores(scores(0.05, 500, DOUBTFUL))
    assert not made.may_draft([DOUBTFUL] * 3)


@pytest.mark.parametrize("schedule", [SYNC, OFF])
def test_the_draft_does_not_run_ahead_unless_both_work_at_the_same_time(schedule: Schedule) -> None:
    assert not policy(SLOW_TARGET, schedules=(schedule,)).may_draft([])


@pytest.mark.parametrize("machine", [APART, FAST_DRAFT, TWO_CORES])
def test_the_same_run_is_decided_in_the_same_way(machine: Machine) -> None:
    runs = []
    for _ in range(2):
        made = Policy(8, N_AHEAD)
        runs.append((replay(made, machine, constant(0.6, 3), 2000), made.statistics()))
    assert runs[0] == runs[1]


def test_a_schedule_that_is_off_never_drafts() -> None:
    made = Policy(8, N_AHEAD, (OFF,))
    found = replay(made, APART, constant(0.9), 1000)
    assert set(found.n_verified) == {0}
    assert found.waited_s == 0
    assert not made.probe_due()
    assert found.rate == pytest.approx(1 / 0.49)


def test_without_candidates_to_verify_there_is_no_schedule_but_off() -> None:
    assert Policy(0, N_AHEAD).schedule is OFF


def test_a_draft_that_has_ended_leaves_the_target_alone() -> None:
    made = policy(SLOW_TARGET, 0.025)
    made.stop_drafting()
    assert made.schedule is OFF
    assert not made.may_draft([])
    assert made.decide([SURE] * 4, 100, 0.01) == Decision(0)
    assert made.rate == pytest.approx(1 / 0.49)
    for _ in range(5000):
        made.learn_step(1, StepCost(0, 0.49, 0.49))
        assert made.schedule is OFF
        assert not made.probe_due()


def left_off(target_s: dict[int, float], acceptance: float = 0.0) -> Policy:
    """A policy that has left off a draft of t_d = 10 ms, with nothing in its budget."""
    made = policy(target_s, 0.01, acceptance, schedules=ALL)
    while made.schedule is not OFF:
        made.learn_step(1, StepCost(0, 0.1, 0.1))
    made.chooser.budget_s = 0.0
    return made


def test_a_draft_that_is_off_is_probed_when_the_budget_allows_it() -> None:
    made = left_off(EASY)
    n_steps = 0
    while not made.probe_due():
        made.learn_step(1, StepCost(0, 0.1, 0.1))
        n_steps += 1
    assert n_steps >= 16, "there has to be something to read"
    assert made.chooser.budget_s > 0.01
    made.chooser.budget_s = 0.0
    assert not made.probe_due(), "but not for nothing"


def test_a_draft_that_could_not_help_at_its_best_is_not_probed() -> None:
    made = left_off({n: 0.1 * n for n in range(1, 10)})
    made.chooser.budget_s = 99.0
    for _ in range(200):
        made.learn_step(1, StepCost(0, 0.1, 0.1))
        assert not made.probe_due()


def test_probes_take_no_more_than_their_share_of_the_time() -> None:
    made, probes_s = left_off(EASY), 0.0
    for _ in range(5000):
        if made.probe_due():
            probes_s += 0.5
            made.learn_probe(scores(0.0, 32), 64, 0.5, whole=False)
            assert not made.probe_due()
        made.learn_step(1, StepCost(0, 0.1, 0.1))
    assert made.schedule is OFF
    assert 0 < probes_s <= 0.015 * 500 + 0.5


def test_a_draft_that_guesses_is_not_probed() -> None:
    for schedule, n_unscored in ((ASYNC, 1000), (SYNC, 0)):
        made = policy(FLAT, schedules=(schedule,))
        made.chooser.budget_s = 99.0
        made.learn_step(n_unscored, StepCost(0, 0.01, 0.01))
        made.learn_scores(scores(0.5, 1))
        assert not made.probe_due()


def test_probes_that_find_the_draft_better_have_it_taken_up_again() -> None:
    made = left_off(EASY)
    while made.schedule is OFF and made.chooser.n_tokens < 2000:
        if made.probe_due():
            made.learn_probe(scores(0.95, 32), 64, 0.05, whole=True)
        made.learn_step(1, StepCost(0, 0.1, 0.1))
    assert made.schedule is not OFF
    assert made.chooser.n_tokens < 2000

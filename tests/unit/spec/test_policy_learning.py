import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from duo.spec.costs import Calibration
from duo.spec.policy import MIN_SURVIVAL, Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Machine, constant, replay
from tests.unit.spec.machines import APART, FAST_DRAFT, N_AHEAD, TWO_CORES
from tests.unit.spec.policies import FLAT, policy, scores

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


def test_only_the_time_of_single_tokens_is_taken_for_t_d() -> None:
    for schedule in (ASYNC, SYNC):
        made = policy(FLAT, 0.005, schedules=(schedule,))
        made.learn_draft(5, 0.9)
        made.learn_draft(500, 0.9)
        assert made.costs.draft_s == 0.005


def test_in_turns_the_draft_takes_the_number_of_threads_that_is_fastest() -> None:
    made = Policy(8, N_AHEAD, (SYNC,), draft_threads=(2, 1))
    for _ in range(20):
        made.learn_draft(1, {1: 0.004, 2: 0.006}[made.n_draft_threads])
    assert made.n_draft_threads == 1
    assert made.costs.draft_s == pytest.approx(0.004)


def test_a_forecast_that_does_not_come_true_is_corrected() -> None:
    made = policy(FLAT, 0.005, 0.5)
    for _ in range(160):
        made.learn_step(1, StepCost(0, 0.010, 0.050))
    assert made.rates()[ASYNC] < 0.8 * made.forecasts()[ASYNC].rate
    assert made.rates()[OFF] == made.forecasts()[OFF].rate


def test_nothing_is_forecast_before_both_models_were_measured() -> None:
    made = Policy(8, N_AHEAD)
    assert not made.forecasts()
    assert not made.rates()
    made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert made.forecasts() == {}
    made.learn_draft(1, 0.005)
    assert set(made.forecasts()) == set(ALL)


def test_statistics_say_what_was_learned_and_decided_in_json() -> None:
    made = Policy(8, N_AHEAD)
    replay(made, APART, constant(0.8), 2000)
    found = json.loads(json.dumps(made.statistics()))
    assert found["schedule"] == made.schedule.value
    assert found["target_ms"]["alone"]["1"] == pytest.approx(490)
    assert found["draft_ms"] == pytest.approx({"alone": 25, "beside": 25})
    assert found["acceptance"] == pytest.approx(0.8, abs=0.1)
    assert found["rate"] == pytest.approx(5.5, rel=0.15)
    assert set(found["forecast_tokens_per_s"]) == {"async", "sync", "off"}
    assert {"tokens", "schedule", "reason"} == set(found["changes"][0])


class Greedy(Policy):
    """Whose texts are all of one mode of sampling: without one, acceptance is not kept."""

    def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "greedy") -> None:
        super().begin(n_prompt, n_room, mode)


@pytest.mark.parametrize(("machine", "acceptance"), [(APART, 0.8), (TWO_CORES, 0.9), (FAST_DRAFT, 0.8)])
def test_another_run_begins_with_what_was_learned(machine: Machine, acceptance: float) -> None:
    first = Greedy(8, N_AHEAD)
    replay(first, machine, constant(acceptance), 3000)
    second = Greedy(8, N_AHEAD)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.alone.target_s(1) == pytest.approx(first.alone.target_s(1))
    assert second.beside.draft_s == pytest.approx(first.beside.draft_s)
    second.begin(10)
    rates = first.rates()
    assert second.schedule is max(rates, key=rates.__getitem__)
    assert second.rate > 0


def test_another_run_soon_ends_its_trust_in_a_draft_that_was_useless() -> None:
    first, second = Greedy(8, N_AHEAD), Greedy(8, N_AHEAD)
    replay(first, FAST_DRAFT, constant(0.0), 3000)
    second.restore(first.state())
    drafted = replay(second, FAST_DRAFT, constant(0.0), 256).n_verified
    assert sum(map(bool, drafted)) <= 0.1 * len(drafted)


def test_a_policy_that_has_learned_nothing_can_be_kept_too() -> None:
    made = Policy(8, N_AHEAD)
    made.restore(json.loads(json.dumps(Policy(8, N_AHEAD).state())))
    assert made.forecasts() == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("alone"),
        lambda state: state.pop("beside"),
        lambda state: state.pop("acceptance"),
        lambda state: state.pop("read_s"),
        lambda state: state.pop("bias"),
        lambda state: state["bias"].pop("sync"),
        lambda state: state["bias"].update(sync=None),
        lambda state: state["bias"].update(sync="much"),
        lambda state: state.update(read_s="long"),
        lambda state: state.update(beside=3),
        lambda state: state["alone"]["target_s"].update({"1": -1}),
        lambda state: state["acceptance"]["greedy"].update(mean=7),
        lambda state: state["acceptance"].update(coupled=7),
        lambda state: state.update(acceptance=7),
    ],
)
def test_a_damaged_state_is_refused(damage: Callable[[dict[str, Any]], Any]) -> None:
    state = policy(FLAT, mode="greedy").state()
    Policy(8, N_AHEAD).restore(state)
    damage(state)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Policy(8, N_AHEAD).restore(state)
    made = Policy(8, N_AHEAD)
    made.restore_kept(state)
    assert made.state() == Policy(8, N_AHEAD).state(), "nothing of it is taken over"


@pytest.mark.parametrize(("bias", "counts_as"), [(0.01, 0.5), (99.0, 2.0), (1.1, 1.1)])
def test_a_correction_that_was_kept_is_held_within_bounds(bias: float, counts_as: float) -> None:
    state = policy(FLAT).state()
    state["bias"]["async"] = bias
    made = Policy(8, N_AHEAD)
    made.restore(state)
    assert made.rates()[ASYNC] == pytest.approx(counts_as * made.forecasts()[ASYNC].rate)


def test_with_a_remote_draft_the_target_is_first_measured_alone() -> None:
    """Else nothing would tell that the draft, on the same machine after all, slows it down."""
    policy = Policy(4, 8, remote=True)
    policy.begin(10)
    for _ in range(2):
        assert policy.schedule is Schedule.OFF
        assert not policy.may_draft(())
        policy.learn_step(1, StepCost(0, 0.010, 0.010))
    assert policy.schedule is Schedule.ASYNC
    assert policy.alone.target_s(1) == pytest.approx(0.010)
    again = Policy(4, 8, remote=True)
    again.restore(policy.state())
    again.begin(10)
    assert again.schedule is Schedule.ASYNC, "what was learned needs no measuring"


def test_who_wants_a_remote_draft_in_any_case_gets_it_at_once() -> None:
    assert Policy(4, 8, (Schedule.ASYNC,), remote=True).schedule is Schedule.ASYNC


# One policy, text after text


def learned(policy: Policy) -> tuple[object, ...]:
    """All that is known of the pair; what holds for one text only is left out."""
    n_measured = [[costs.n_measured(n) for n in range(1, 10)] for costs in (policy.alone, policy.beside)]
    return policy.state(), n_measured, policy.latency_s


@pytest.mark.parametrize(("machine", "acceptance"), [(APART, 0.8), (TWO_CORES, 0.9), (FAST_DRAFT, 0.1)])
def test_many_texts_in_which_nothing_happens_change_nothing_that_was_learned(
    machine: Machine, acceptance: float
) -> None:
    """What is kept in a file counts little when it is taken up again; a policy that lives on forgets nothing."""
    made = Greedy(8, N_AHEAD)
    replay(made, machine, constant(acceptance), 3000)
    before, rates = learned(made), made.rates()
    assert made.calibration.mean == pytest.approx(acceptance, abs=0.1)
    for _ in range(100):
        made.begin(10)
    assert learned(made) == before
    assert made.rates() == rates


def test_the_second_text_begins_with_the_best_schedule_of_the_first() -> None:
    made = Greedy(8, N_AHEAD)
    assert made.schedule is SYNC
    replay(made, APART, constant(0.8), 3000)
    made.begin(10)
    assert (made.schedule, made.rate > 0) == (ASYNC, True)
    assert made.statistics()["changes"] == [], "what was decided in the first is no part of it"
    assert not made.scores


def test_a_draft_that_died_in_one_text_is_asked_again_in_the_next() -> None:
    made = policy(FLAT, 0.001, 0.9)
    made.stop_drafting()
    assert made.schedule is OFF
    made.begin(10)
    assert made.schedule is ASYNC
    assert made.may_draft(())


def test_each_mode_of_sampling_has_its_own_acceptance_and_all_have_the_same_costs() -> None:
    made = Policy(8, N_AHEAD, (ASYNC,))
    means = {}
    for mode, acceptance in (("greedy", 0.9), ("coupled", 0.6), ("rejection", 0.2)):
        made.begin(10, mode=mode)
        untaught = made.calibration.mean
        made.learn_scores(scores(acceptance))
        means[mode] = made.calibration.mean
        assert means[mode] != untaught
        assert made.in_order == (mode == "rejection")
    made.learn_step(1, StepCost(0, 0.010, 0.010))
    for mode, mean in means.items():
        made.begin(10, mode=mode)
        assert made.calibration.mean == mean
        assert made.costs.target_s(1) == 0.010
    assert set(made.state()["acceptance"]) == set(means)
    again = Policy(8, N_AHEAD, (ASYNC,))
    again.restore(json.loads(json.dumps(made.state())))
    for mode in means:
        again.begin(10, mode=mode)
        kept = Calibration()
        kept.restore(made.state()["acceptance"][mode])
        assert again.calibration.mean == kept.mean


# How far a draft may go on


@pytest.mark.parametrize("acceptance", [0.05, 0.5, 0.9])
def test_the_draft_goes_on_as_long_as_its_guesses_are_likely_to_survive(acceptance: float) -> None:
    made = policy(FLAT, 0.005, acceptance)
    made.learn_scores([*scores(0.1, 200, 0.1), *scores(0.95, 200, 10.0)])
    least = min(MIN_SURVIVAL, made.rate * made.costs.draft_s)
    found = set()
    for confidences in itertools.product([0.1, 1.0, 10.0], repeat=4):
        survival = math.prod(map(made.calibration.probability, confidences))
        assert made.may_draft(confidences) == (survival >= least)
        found.add(survival >= least)
    assert found == {True, False}
    assert not made.may_draft([10.0] * N_AHEAD)
    assert not policy(FLAT, schedules=(SYNC,)).may_draft(())

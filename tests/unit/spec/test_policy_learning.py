"""What a policy learns, in one text, text after text, and from run to run."""

import json

import pytest

from duo.spec.costs import Calibration
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Machine, constant, replay
from tests.unit.spec.machines import APART, FAST_DRAFT, N_AHEAD, TWO_CORES
from tests.unit.spec.policies import FLAT, policy, scores

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


class Greedy(Policy):
    """All of its texts are of one mode of sampling: without a mode, acceptance is not kept."""

    def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "greedy") -> None:
        super().begin(n_prompt, n_room, mode)


def replayed(machine: Machine, acceptance: float) -> Policy:
    made = Greedy(8, N_AHEAD)
    replay(made, machine, constant(acceptance), 2000)
    return made


@pytest.fixture(scope="module")
def learned() -> dict[str, Policy]:
    """Not to be modified: restore a copy of its state."""
    cases = {"apart": (APART, 0.8), "two cores": (TWO_CORES, 0.9), "useless": (FAST_DRAFT, 0.0)}
    return {name: replayed(*case) for name, case in cases.items()}


def another_run(policy: Policy) -> Policy:
    made = Greedy(8, N_AHEAD)
    made.restore(json.loads(json.dumps(policy.state())))
    return made


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_draft_time_is_that_of_single_tokens(schedule: Schedule) -> None:
    made = policy(FLAT, 0.005, schedules=(schedule,))
    for n_tokens in (5, 500):
        made.learn_draft(n_tokens, 0.9)
    assert made.costs.draft_s == 0.005


def test_sequential_draft_uses_the_fastest_number_of_threads() -> None:
    made = Policy(8, N_AHEAD, (SYNC,), draft_threads=(2, 1))
    for _ in range(20):
        made.learn_draft(1, {1: 0.004, 2: 0.006}[made.n_draft_threads])
    assert made.n_draft_threads == 1
    assert made.costs.draft_s == pytest.approx(0.004)


def test_a_wrong_forecast_is_corrected() -> None:
    made = policy(FLAT, 0.005, 0.5)
    for _ in range(160):
        made.learn_step(1, StepCost(0, 0.010, 0.050))
    assert made.rates()[ASYNC] < 0.8 * made.forecasts()[ASYNC].rate
    assert made.rates()[OFF] == made.forecasts()[OFF].rate


def test_there_is_no_forecast_before_both_models_were_measured() -> None:
    made = Policy(8, N_AHEAD)
    assert not made.forecasts()
    assert not made.rates()
    made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert made.forecasts() == {}
    made.learn_draft(1, 0.005)
    assert set(made.forecasts()) == set(ALL)


def test_statistics_are_json(learned: dict[str, Policy]) -> None:
    made = learned["apart"]
    found = json.loads(json.dumps(made.statistics()))
    assert found["schedule"] == made.schedule.value
    assert found["target_ms"]["alone"]["1"] == pytest.approx(490)
    assert found["draft_ms"] == pytest.approx({"alone": 25, "beside": 25})
    assert found["acceptance"] == pytest.approx(0.8, abs=0.1)
    assert found["rate"] == pytest.approx(5.5, rel=0.15)
    assert set(found["forecast_tokens_per_s"]) == {"async", "sync", "off"}
    assert {"tokens", "schedule", "reason"} == set(found["changes"][0])


# Text after text


def known(policy: Policy) -> tuple[object, ...]:
    """All that is known of the pair, without what holds for one text only."""
    n_measured = [[costs.n_measured(n) for n in range(1, 10)] for costs in (policy.alone, policy.beside)]
    return policy.state(), n_measured, policy.latency_s, policy.rates()


def test_a_live_policy_forgets_nothing_between_texts() -> None:
    """Unlike what is kept in a file, which counts little when it is restored."""
    made = replayed(APART, 0.8)
    assert made.statistics()["changes"]
    before = known(made)
    for _ in range(100):
        made.begin(10)
    assert known(made) == before
    assert (made.schedule, made.rate > 0) == (ASYNC, True), "the best schedule of the first text"
    assert made.statistics()["changes"] == []
    assert not made.scores


def test_each_mode_of_sampling_has_its_own_acceptance_and_all_share_the_costs() -> None:
    made = Policy(8, N_AHEAD, (ASYNC,))
    means = {}
    for mode, acceptance in (("greedy", 0.9), ("coupled", 0.6), ("rejection", 0.2)):
        made.begin(10, mode=mode)
        prior = made.calibration.mean
        made.learn_scores(scores(acceptance))
        means[mode] = made.calibration.mean
        assert means[mode] != prior
        assert made.in_order == (mode == "rejection")
    made.learn_step(1, StepCost(0, 0.010, 0.010))
    again = Policy(8, N_AHEAD, (ASYNC,))
    again.restore(json.loads(json.dumps(made.state())))
    assert set(made.state()["acceptance"]) == set(means)
    for mode, mean in means.items():
        made.begin(10, mode=mode)
        assert made.calibration.mean == mean
        assert made.costs.target_s(1) == 0.010
        kept = Calibration()
        kept.restore(made.state()["acceptance"][mode])
        again.begin(10, mode=mode)
        assert again.calibration.mean == kept.mean


# From run to run


@pytest.mark.parametrize("name", ["apart", "two cores"])
def test_another_run_begins_with_the_learned_costs_and_the_best_schedule(learned: dict[str, Policy], name: str) -> None:
    first, second = learned[name], another_run(learned[name])
    assert second.alone.target_s(1) == pytest.approx(first.alone.target_s(1))
    assert second.beside.draft_s == pytest.approx(first.beside.draft_s)
    second.begin(10)
    rates = first.rates()
    assert second.schedule is max(rates, key=rates.__getitem__)
    assert second.rate > 0


def test_another_run_soon_stops_using_a_useless_draft(learned: dict[str, Policy]) -> None:
    n_verified = replay(another_run(learned["useless"]), FAST_DRAFT, constant(0.0), 256).n_verified
    assert sum(map(bool, n_verified)) <= 0.1 * len(n_verified)


def test_the_state_of_an_empty_policy_can_be_restored() -> None:
    assert another_run(Policy(8, N_AHEAD)).forecasts() == {}


def test_an_age_beyond_all_numbers() -> None:
    made = Policy(8, N_AHEAD)
    state = made.state() | {"alone": {"target_s": {"1": [0.1, 10**400]}, "draft_s": {}}}
    made.restore_kept(state)
    assert made.alone.target_s(1) == pytest.approx(0.08)


@pytest.mark.parametrize("name", ["alone", "beside", "acceptance", "read_s", "bias"])
@pytest.mark.parametrize(
    "value",
    [
        "much", True, 10**400, {"sync": None}, {"sync": 1, "async": 1, "off": 10**400}, {"greedy": {"mean": 7}},
        {"target_s": {"1": -1}}, {"target_s": {"1": ["0.1", 0]}, "draft_s": {}},
        {"target_s": {"1": [0.1, True]}, "draft_s": {}}, {"target_s": {"1": [1e300, 0]}, "draft_s": {}}, KeyError,
    ],
)  # fmt: skip
def test_nothing_of_a_damaged_state_is_restored(name: str, value: object) -> None:
    state = policy(FLAT, mode="greedy").state()
    Policy(8, N_AHEAD).restore(state)
    state[name] = value
    if value is KeyError:
        del state[name]
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Policy(8, N_AHEAD).restore(state)
    made = Policy(8, N_AHEAD)
    made.restore_kept(state)
    assert made.state() == Policy(8, N_AHEAD).state()


@pytest.mark.parametrize(("bias", "counts_as"), [(0.01, 0.5), (99.0, 2.0), (1.1, 1.1)])
def test_a_restored_correction_is_limited(bias: float, counts_as: float) -> None:
    state = policy(FLAT).state()
    state["bias"]["async"] = bias
    made = Policy(8, N_AHEAD)
    made.restore(state)
    assert made.rates()[ASYNC] == pytest.approx(counts_as * made.forecasts()[ASYNC].rate)

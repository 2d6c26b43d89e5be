"""What a policy learns, in one text, text after text, and from run to run."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.virtual import constant, replay
from duo.config import MAX_THREADS
from duo.spec.calibration import Calibration
from duo.spec.constants import DEFAULT
from duo.spec.pair import Machine
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from tests.unit.spec.machines import APART, FAST_DRAFT, N_AHEAD, TWO_CORES
from tests.unit.spec.policies import CLIFF, FLAT, SLOW_TARGET, STEEP, policy, scores

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


class Greedy(Policy):
    """All of its texts are of one mode of sampling: without a mode, acceptance is not kept."""

    def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "greedy") -> None:
        super().begin(n_prompt, n_room, mode)


def replayed(machine: Machine, acceptance: float, *, apart: bool = False) -> Policy:
    made = Greedy(8, N_AHEAD, separate_devices=apart)
    replay(made, machine, constant(acceptance), 2000)
    return made


@pytest.fixture(scope="module")
def learned() -> dict[str, Policy]:
    """Not to be modified: restore a copy of its state."""
    cases = {"apart": (APART, 0.8), "two cores": (TWO_CORES, 0.9), "useless": (FAST_DRAFT, 0.0)}
    return {name: replayed(*case, apart=name == "apart") for name, case in cases.items()}


def another_run(policy: Policy) -> Policy:
    made = Greedy(8, N_AHEAD, separate_devices=policy.separate_devices)
    made.restore(json.loads(json.dumps(policy.state())))
    return made


def test_a_wrong_forecast_is_corrected() -> None:
    made = policy(FLAT, 0.005, 0.5)
    for _ in range(160):
        made.learn_step(1, StepCost(0, 0.010, 0.050))
    assert made.rates()[ASYNC] < 0.8 * made.forecasts()[ASYNC].rate
    assert made.rates()[OFF] == made.forecasts()[OFF].rate


@given(
    acceptance=st.floats(0, 1),
    n_scores=st.integers(0, 60),
    draft_s=st.floats(0.0005, 0.05),
    target_s=st.sampled_from([FLAT, STEEP, CLIFF, SLOW_TARGET]),
)
def test_forecasts_lie_between_the_low_and_the_high_one(
    acceptance: float, n_scores: int, draft_s: float, target_s: dict[int, float]
) -> None:
    made = policy(target_s, draft_s)
    made.learn_scores(scores(acceptance, n_scores))
    made.alone.add_target(1, target_s[1])
    for outlook in made.estimates().values():
        assert outlook.low <= 1.001 * outlook.rate <= 1.002 * outlook.high
    assert made.estimates()[OFF].low < made.estimates()[OFF].high, "costs are uncertain too"


def test_the_draft_measured_while_loading_counts_until_it_was_measured_in_a_text() -> None:
    made = Policy(8, N_AHEAD, draft_threads=(2, 1))
    made.learn_warmup(2, 0.008)
    made.learn_warmup(1, 0.005)
    assert (made.knows_draft(2), made.knows_draft(1), made.knows_draft(3)) == (True, True, False)
    assert (made.alone.draft_s, made.n_draft_threads) == (0.005, 1)
    made.learn_warmup(1, 0.001)
    assert made.alone.draft_s == 0.005, "what is known is not replaced"
    made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert set(made.forecasts()) == set(ALL), "before the draft was used"
    assert made.read_s == pytest.approx(0.2 * 0.005), "an estimate"
    made.learn_draft(16, 0.8)
    assert made.read_s == 0.05


def test_statistics_are_json(learned: dict[str, Policy]) -> None:
    made = learned["two cores"]
    found = json.loads(json.dumps(asdict(made.statistics())))
    assert found["schedule"] == made.schedule.value == "sync"
    assert found["target_ms"]["alone"]["1"] == pytest.approx(54)
    assert found["draft_ms"] == pytest.approx({"alone": 17.3, "beside": 26})
    assert found["pair_ms"] == pytest.approx(20.3)
    assert found["curve_ms"]["alone"][0] == pytest.approx(54)
    assert set(found["measured"]["alone"]) >= {1, 4}
    assert found["acceptance"] == pytest.approx(0.9, abs=0.1)
    assert found["rate"] == pytest.approx(26, rel=0.15)
    assert found["forecast_tokens_per_s"] == pytest.approx({"async": 22, "sync": 26, "off": 18.5}, rel=0.15)
    assert {"tokens", "schedule", "reason"} == set(found["changes"][0])


# Text after text


def known(policy: Policy) -> tuple[object, ...]:
    """All that is known of the pair, without what holds for one text only."""
    n_measured = [[costs.target(n).n for n in range(1, 10)] for costs in (policy.alone, policy.concurrent)]
    return policy.state(), n_measured, policy.latency_s, policy.rates()


def test_a_live_policy_forgets_nothing_between_texts() -> None:
    """Unlike what is kept in a file, which counts little when it is restored."""
    made = replayed(TWO_CORES, 0.9)
    assert made.statistics().changes
    made.begin(10)
    before = known(made)
    for _ in range(100):
        made.begin(10)
    assert known(made) == before
    assert (made.schedule, made.rate > 0) == (SYNC, True)
    assert [change.tokens for change in made.chooser.changes] == [0]
    assert not made.scores


def test_each_mode_of_sampling_has_its_own_acceptance_and_all_share_the_costs() -> None:
    made = Policy(8, N_AHEAD, (ASYNC,))
    means = {}
    for mode, acceptance in (("greedy", 0.9), ("coupled", 0.6), ("rejection", 0.2)):
        made.begin(10, mode=mode)
        prior = made.calibration.mean
        made.learn_scores(scores(acceptance))
        means[mode] = made.state()["acceptance"][mode]["mean"]
        assert abs(made.calibration.mean - acceptance) < abs(prior - acceptance)
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


@pytest.mark.parametrize("name", ["apart", "two cores", "useless"])
def test_another_run_begins_with_the_best_known_schedule(learned: dict[str, Policy], name: str) -> None:
    first = learned[name]
    second = another_run(first)
    assert second.alone.target_s(1) == pytest.approx(first.alone.target_s(1))
    assert second.concurrent.draft_s == pytest.approx(first.concurrent.draft_s)
    second.begin(10)
    rates = first.rates()
    assert second.schedule is max(rates, key=rates.__getitem__)


def spoiled(policy: Policy, factor: float = 1.0, acceptance: float | None = None) -> Policy:
    """Another run, with T(n > 1) multiplied by `factor` and this `acceptance` in its profile."""
    state = json.loads(json.dumps(policy.state()))
    for costs in state["costs"]["0"]:
        costs["target_s"] = {n: [s * (factor if n != "1" else 1), d] for n, (s, d) in costs["target_s"].items()}
    if acceptance is not None:
        kept = state["acceptance"]["greedy"]
        kept["accepted"], kept["mean"] = [acceptance] * len(kept["accepted"]), acceptance
    made = Greedy(8, N_AHEAD)
    made.restore(state)
    return made


@pytest.mark.parametrize(("factor", "acceptance"), [(1.0, None), (2.0, None), (1.0, 0.1)])
def test_a_profile_that_wrongly_says_that_drafting_does_not_pay_is_found_out(
    learned: dict[str, Policy], factor: float, acceptance: float | None
) -> None:
    made = spoiled(learned["two cores"], factor, acceptance)
    found = [replay(made, TWO_CORES, constant(0.9, seed), 256) for seed in range(2)]
    is_right = (factor, acceptance) == (1.0, None)
    assert (found[0].tokens_in[OFF] == 0) is is_right
    assert found[0].rate > 0.9 / TWO_CORES.target_s[0]
    assert found[1].tokens_in[SYNC] > 0.9 * 256, "at least in the next text"
    assert made.alone.target_s(4) == pytest.approx(TWO_CORES.target_s[3], rel=0.05)


# On some of the cores


def test_the_costs_of_each_number_of_cores_are_kept_and_the_current_one_remains() -> None:
    made = Policy(8, N_AHEAD)
    for n_cores, seconds in ((0, 0.010), (3, 0.030)):
        made.use_cores(n_cores)
        made.alone.add_target(1, seconds)
        made.concurrent.add_target(1, 2 * seconds)
    state = json.loads(json.dumps(made.state()))
    assert set(state["costs"]) == {"0", "3"}
    again = Policy(8, N_AHEAD)
    again.use_cores(3)
    again.restore(state)
    assert (again.alone.target(1).value, again.concurrent.target(1).value) == (0.030, 0.060)
    again.use_cores(0)
    assert (again.alone.target(1).value, again.concurrent.target(1).value) == (0.010, 0.020)


@pytest.mark.parametrize("name", ["costs", "acceptance", "read_s", "latency_s", "bias"])
@pytest.mark.parametrize(
    "value",
    [
        "much", True, 10**400, math.nan, {"sync": None}, {"sync": 1, "async": 1, "off": 10**400},
        {"greedy": {"mean": 7}}, {"0": []}, {"0": [{}]}, {"0": [{}, {}, {}]}, {"-1": [{}, {}]}, {"all": [{}, {}]},
        {str(MAX_THREADS + 1): [{}, {}]}, {"0": [{"target_s": {"1": -1}}, {}]},
        {"0": [{}, {"target_s": {"1": ["0.1", 0]}}]}, {"0": [{"target_s": {"1": [0.1, True]}}, {}]},
        {"0": [{"target_s": {"1": [1e300, 0]}}, {}]}, {"0": [{"target_s": {"0": [0.1, 0]}}, {}]},
        {"0": [{"draft_s": {"1": ["fast", 0]}}, {}]}, {"0": [{"pair_s": {"3": [0.1, 0]}}, {}]},
        {"0": [{"branch_s": {"10": [1.0, 0.1]}}, {}]}, {"0": [{"branch_s": {"1": [0.1, 0]}}, {}]},
        KeyError,
    ],
)  # fmt: skip
def test_nothing_of_a_damaged_state_is_restored(name: str, value: object) -> None:
    state: Any = policy(FLAT, mode="greedy").state()
    Policy(8, N_AHEAD).restore(state)
    state[name] = value
    if value is KeyError:
        del state[name]
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Policy(8, N_AHEAD).restore(state)
    made = Policy(8, N_AHEAD)
    made.restore_kept(state)
    assert made.state() == Policy(8, N_AHEAD).state()


@pytest.mark.parametrize(
    ("name", "value"),
    [("ranks", [2.0, 0, 0]), ("shares", [0.5] * 9), ("mean", math.nan), ("accepted", [-0.1] * 9), ("edges", [1.0])],
)
def test_a_damaged_acceptance_is_refused(name: str, value: object) -> None:
    state: Any = {**Calibration().state(), name: value}
    with pytest.raises((KeyError, TypeError, ValueError)):
        Calibration().restore(state)


@pytest.mark.parametrize(("bias", "counts_as"), [(0.01, 0.5), (99.0, 2.0), (1.1, 1.1)])
def test_a_restored_correction_is_limited(bias: float, counts_as: float) -> None:
    state = policy(FLAT).state()
    state["bias"]["async"] = bias
    made = Policy(8, N_AHEAD)
    made.restore(state)
    assert made.rates()[ASYNC] == pytest.approx(counts_as * made.forecasts()[ASYNC].rate)


# The first text of a pair


def test_a_draft_of_which_nothing_is_known_has_the_budget_of_a_first_text() -> None:
    """Also where T(n) is known, from the target alone or from another draft."""
    made = Greedy(8, N_AHEAD)
    found = []
    for n_scored in (0, 0, 24, 0):
        made.begin(10)
        made.learn_step(1, StepCost(0, 0.1, 0.1))
        found.append(made.chooser.budget.credit_s / 0.1)
        made.learn_scores(scores(0.5, n_scored))
    assert found == pytest.approx([DEFAULT.first, DEFAULT.first, DEFAULT.first, DEFAULT.later], abs=0.01)


# Without a warm-up


def cold() -> Policy:
    """A policy that was not told the draft's time, after some tokens of the target alone."""
    made = Policy(8, 16)
    made.begin(10)
    for _ in range(20):
        made.learn_step(1, StepCost(0, 0.1, 0.1))
    return made


def test_a_probe_tells_the_draft_s_time_if_no_warm_up_did() -> None:
    made = cold()
    assert made.probe_size()
    assert made.forecasts() == {}
    made.learn_probe(scores(0.9, 12), 24, 0.24, whole=False)
    assert made.alone.draft_s == pytest.approx(0.01 / DEFAULT.read)
    assert made.forecasts()
    assert not made.state()["costs"]["0"][0]["draft_s"], "it is inferred"


def test_a_forced_schedule_makes_no_debt() -> None:
    made = Policy(8, 16, (Schedule.SYNC,))
    made.begin(10)
    for _ in range(20):
        made.learn_step(1, StepCost(0, 0.1, 0.3))
    assert made.chooser.budget.credit_s >= 0


def test_no_reported_forecast_exceeds_the_limit() -> None:
    """What was faster than expected may have been luck."""
    made = policy(FLAT, 0.009, 0.9, schedules=ALL)
    made.restore(made.state() | {"bias": {"off": 2.0, "sync": 2.0, "async": 2.0}})
    shown = made.statistics().forecast_tokens_per_s
    assert max(made.rates().values()) > made.max_rate() >= max(shown.values()) > 0
    assert Policy(8, N_AHEAD).max_rate() == math.inf

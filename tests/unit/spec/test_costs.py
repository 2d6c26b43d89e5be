import json
import math
import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.costs import HOPE, MOST_HOPE, TRUST, Calibration, CostModel, Mean, Time

SURE, DOUBTFUL = 9.0, 0.0
DELETE = object()


# Means


def test_a_mean_weights_the_first_values_equally_and_forgets_them_later() -> None:
    running = Mean(weight=0.1)
    for value in (1, 2, 3):
        running.add(value)
    assert running.value == 2
    for _ in range(100):
        running.add(7)
    assert running.value == pytest.approx(7, abs=0.01)
    started = Mean(value=1.0, n=3)  # begins with a value that counts as three
    started.add(5.0)
    assert started.value == 2


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        ([0.01, 0.022], 0.01, 0.01),  # the better of the first two
        ([0.022, 0.01], 0.01, 0.01),
        ([9.0, *[0.02] * 6], 0.02, 0.023),  # one interruption, whenever it is
        ([0.02, 9.0, *[0.02] * 5], 0.02, 0.023),
        ([*[0.02] * 5, 9.0, 0.02], 0.02, 0.023),
        ([*[0.02] * 9, *[0.4] * 90], 0.392, 0.408),  # a change that lasts
    ],
)
def test_a_time_follows_lasting_changes_and_ignores_an_interruption(
    seconds: list[float], least: float, most: float
) -> None:
    time = Time()
    for value in seconds:
        time.add(value)
    assert least <= time.value <= most


# The cost curve


def measured(target_s: dict[int, float], other: CostModel | None = None) -> CostModel:
    costs = CostModel(other)
    for n, seconds in target_s.items():
        costs.add_target(n, seconds)
    return costs


@pytest.mark.parametrize(
    ("target_s", "curve"),
    [
        ({}, [0, 0, 0]),
        ({1: 0.01, 3: 0.02}, [0.01, 0.01, 0.02, 0.02, 0.02]),  # an untried size costs what the next smaller one does
        ({1: 0.01, 4: 0.03, 5: 0.02}, [0.01, 0.01, 0.01, 0.03, 0.02, 0.02]),  # a measured dip is kept
        ({1: 0.5, 2: 0.02}, [0.02, 0.02]),  # a disturbed first measurement of one token is corrected by a larger batch
    ],
)
def test_curve_from_some_measured_sizes(target_s: dict[int, float], curve: list[float]) -> None:
    assert measured(target_s).curve(len(curve)) == curve


def test_new_measurements_take_effect_at_once_in_both_conditions() -> None:
    alone = measured({1: 0.010})
    beside = measured({1: 0.020}, alone)
    assert (alone.target_s(2), beside.target_s(2)) == (0.010, 0.020)
    alone.add_target(2, 0.011)
    assert alone.target_s(2) == 0.011
    assert beside.target_s(2) == pytest.approx(0.022)
    other = CostModel()
    beside = CostModel(other)
    assert beside.target_s(2) == beside.draft_s == 0
    other.restore(measured({1: 0.010, 2: 0.020}).state())
    assert beside.target_s(2) == pytest.approx(0.020)
    other.add_draft(0.005)
    assert beside.draft_s == 0.005
    beside.add_draft(0.009)
    assert (other.draft_s, beside.draft_s) == (0.005, 0.009)


def test_a_size_measured_in_the_other_condition_only_is_scaled() -> None:
    alone = measured({1: 0.010, 4: 0.016})
    beside = measured({1: 0.015}, alone)
    assert beside.target_s(4) == pytest.approx(0.024)
    beside.add_target(2, 0.030)
    assert alone.target_s(2) == pytest.approx(0.020)
    assert alone.target_s(4) == pytest.approx(0.016), "what was measured here counts"
    assert CostModel(alone).curve(4) == pytest.approx([0.010, 0.010, 0.010, 0.016]), "nothing to scale with"
    two = measured({1: 0.010, 2: 0.040}, measured({1: 0.010, 2: 0.010, 3: 0.020}))
    assert two.target_s(3) == pytest.approx(0.040), "the geometric mean of 1 and 4"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.floats(0.001, 1.0)), min_size=1, max_size=4))
def test_no_size_is_faster_than_one_token_while_that_was_rarely_measured(
    measurements: list[tuple[bool, int, float]],
) -> None:
    """A disturbed first decode must not make the target alone look slow for ever."""
    alone = CostModel()
    beside = CostModel(alone)
    for here, n, seconds in measurements:
        (beside if here else alone).add_target(n, seconds)
        for costs in (alone, beside):
            assert costs.target_s(1) <= min(costs.curve(8)) * (1 + 1e-9)


def test_one_token_may_be_slower_than_two_when_it_was_measured_often() -> None:
    """With llama.cpp one row takes other kernels than several."""
    costs = measured({1: 0.03, 2: 0.02})
    for _ in range(4):
        costs.add_target(1, 0.03)
    assert costs.target_s(1) == pytest.approx(0.03)


def test_each_number_of_draft_threads_is_tried_three_times_then_the_fastest_is_used() -> None:
    costs, tried = CostModel(), []
    seconds = {4: 0.008, 2: 0.005, 1: 0.006}
    for _ in range(12):
        n = costs.draft_threads((4, 2, 1))
        tried.append(n)
        costs.add_draft(seconds[n], n)
    assert tried == [4] * 3 + [2] * 3 + [1] * 3 + [2] * 3
    assert costs.draft_s == 0.005


# Kept between runs


def another_run(costs: CostModel) -> CostModel:
    """A cost model that begins with what this one has learned."""
    restored = CostModel()
    restored.restore(json.loads(json.dumps(costs.state())))
    return restored


def test_another_run_begins_with_the_learned_costs() -> None:
    costs = measured({1: 0.010, 4: 0.016})
    costs.add_draft(0.005, 2)
    restored = another_run(costs)
    assert restored.curve(4) == pytest.approx([0.010] * 3 + [0.016])
    assert restored.draft_s == pytest.approx(0.005)
    for _ in range(2):
        restored.add_target(4, 0.030)
    assert restored.target_s(4) > 0.020, "new measurements soon outweigh it"


def test_target_ms_reports_what_was_measured_in_this_run_and_condition() -> None:
    alone = measured({4: 0.016, 1: 0.010})
    assert alone.target_ms() == {"1": pytest.approx(10), "4": pytest.approx(16)}
    assert measured({1: 0.02}, alone).target_ms() == {"1": pytest.approx(20)}
    restored = another_run(alone)
    restored.add_target(4, 0.016)
    assert restored.target_ms() == {"4": pytest.approx(16)}


def test_sizes_not_measured_for_several_runs_are_assumed_cheaper_until_tried_again() -> None:
    costs = measured({1: 0.010, 4: 0.016})
    hoped = []
    for _ in range(8):
        costs = another_run(costs)
        costs.add_target(1, 0.010)
        hoped.append(costs.target_s(4) / 0.016)
    assert hoped[:3] == pytest.approx([1, HOPE, HOPE**2])
    assert hoped[-1] == pytest.approx(MOST_HOPE), "within bounds"
    costs.add_target(4, 0.016)
    assert another_run(costs).target_s(4) == pytest.approx(costs.target_s(4)), "measured again"


# Calibration


def learn(calibration: Calibration, acceptance: float, n: int, seed: int = 0) -> Calibration:
    dice = random.Random(seed)
    for _ in range(n):
        calibration.add(1.0, dice.random() < acceptance)
    return calibration


def test_calibration_learns_the_acceptance_of_each_confidence() -> None:
    calibration = Calibration()
    assert calibration.probability(DOUBTFUL) < calibration.mean < calibration.probability(SURE), "the prior"
    other = calibration.probability(SURE)
    for accepted, n in ((True, 100), (False, 200)):
        for _ in range(n):
            calibration.add(DOUBTFUL, accepted)
        assert abs(calibration.probability(DOUBTFUL) - accepted) < 0.1
        if accepted:
            assert calibration.probability(SURE) == other


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.0), (0.0, 0.85), (0.2, 0.8)])
def test_calibration_soon_follows_a_change_of_the_text(before: float, after: float) -> None:
    """Most of the way within twenty candidates; a mean of long memory goes a fifth of it."""
    for n, least in ((20, 0.6), (60, 0.8)):
        ways = []
        for seed in range(10):
            calibration = learn(learn(Calibration(), before, 500, seed), after, n, seed + 100)
            for value in (calibration.mean, calibration.probability(1.0)):
                ways.append((value - before) / (after - before))
        assert mean(ways) > least


def test_calibration_does_not_follow_chance() -> None:
    """The mean of the last 50 candidates would be off by 0.057 (root mean square), that of the last 100 by 0.04."""
    squares = []
    for seed in range(4):
        calibration, dice = learn(Calibration(), 0.8, 200, seed), random.Random(seed)
        for _ in range(1000):
            calibration.add(1.0, dice.random() < 0.8)
            squares.append((calibration.mean - 0.8) ** 2)
    assert math.sqrt(mean(squares)) < 0.04


def test_another_run_begins_between_the_prior_and_the_learned_acceptance() -> None:
    """Half way, and the mean a little higher."""
    fresh, calibration, restored = Calibration(), learn(Calibration(), 0.3, 500), Calibration()
    restored.restore(json.loads(json.dumps(calibration.state())))
    for confidence in (DOUBTFUL, 1.0, SURE):
        half = (fresh.probability(confidence) + calibration.probability(confidence)) / 2
        assert restored.probability(confidence) == pytest.approx(half)
    assert restored.mean == pytest.approx((fresh.mean + calibration.mean) / 2 + TRUST)
    assert learn(restored, 1.0, 20).mean > 0.85, "it counts for little"


NO_TIMES = [[0.0, 0], [-1.0, 0], [math.inf, 0], [math.nan, 0], [None, 0], 0.1, [0.1, -1], [0.1, 0.5]]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *((CostModel, {"target_s": {"1": value}}) for value in NO_TIMES),
        (CostModel, {"target_s": {"one": [0.1, 0]}}),
        (CostModel, {"target_s": {"0": [0.1, 0]}}),
        (CostModel, {"draft_s": {"1": ["fast", 0]}}),
        *((CostModel, {name: DELETE}) for name in ("draft_s", "target_s")),
        *((Calibration, {"mean": value}) for value in (1.5, "often", math.nan, DELETE)),
        *((Calibration, {"accepted": value}) for value in ([0.5], [-0.1] * 9, None)),
        (Calibration, {"edges": [1.0]}),
    ],
)
def test_a_damaged_state_is_refused(kind: type[CostModel] | type[Calibration], damage: dict[str, object]) -> None:
    made = kind()
    if isinstance(made, CostModel):
        made.add_target(1, 0.010)
    state = {name: value for name, value in {**made.state(), **damage}.items() if value is not DELETE}
    with pytest.raises((KeyError, TypeError, ValueError)):
        kind().restore(state)


def test_reliable_times_are_of_five_measurements_in_this_run_or_of_earlier_runs() -> None:
    costs = CostModel()
    for n in range(1, 6):
        assert costs.reliable_ms(1) == {"this_run": None, "earlier_runs": None}, n
        costs.add_target(1, 0.1)
    assert costs.reliable_ms(1) == {"this_run": pytest.approx(100), "earlier_runs": None}
    later = CostModel()
    later.restore(costs.state())
    for _ in range(4):
        later.add_target(1, 0.1)
        assert later.reliable_ms(1) == {"this_run": None, "earlier_runs": pytest.approx(100)}
    later.add_target(1, 0.1)
    assert later.reliable_ms(1)["this_run"] == pytest.approx(100, rel=0.05)

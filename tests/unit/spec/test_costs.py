import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.costs import HOPE, MOST_HOPE, CostModel, Mean, Time


def measured(target_s: dict[int, float], other: CostModel | None = None) -> CostModel:
    costs = CostModel(other)
    for n, seconds in target_s.items():
        costs.add_target(n, seconds)
    return costs


def test_a_mean_weighs_the_first_values_alike_and_later_forgets_them() -> None:
    running = Mean(weight=0.1)
    for value in (1, 2, 3):
        running.add(value)
    assert running.value == 2
    for _ in range(100):
        running.add(7)
    assert running.value == pytest.approx(7, abs=0.01)


def test_a_mean_may_begin_with_a_value_that_counts_as_several() -> None:
    running = Mean(value=1.0, n=3)
    running.add(5.0)
    assert running.value == 2


@pytest.mark.parametrize("times", [(0.01, 0.022), (0.022, 0.01)])
def test_of_two_times_the_better_counts(times: tuple[float, float]) -> None:
    time = Time()
    for seconds in times:
        time.add(seconds)
    assert time.value == 0.01


@pytest.mark.parametrize("interrupted", [0, 1, 5])
def test_one_interruption_does_not_spoil_a_time(interrupted: int) -> None:
    time = Time()
    for i in range(7):
        time.add(9.0 if i == interrupted else 0.02)
    assert time.value < 0.023


def test_a_time_follows_a_change_that_lasts() -> None:
    time = Time()
    for seconds in [0.02] * 9 + [0.4] * 90:
        time.add(seconds)
    assert time.value == pytest.approx(0.4, rel=0.02)


def test_nothing_is_known_at_first() -> None:
    costs = CostModel(CostModel())
    assert costs.target_s(5) == costs.draft_s == 0
    assert costs.curve(3) == [0, 0, 0]


def test_hope_has_an_untried_size_cost_what_the_next_smaller_does() -> None:
    assert measured({1: 0.01, 3: 0.02}).curve(5) == [0.01, 0.01, 0.02, 0.02, 0.02]


def test_a_new_measurement_is_seen_at_once() -> None:
    costs = measured({1: 0.01})
    assert costs.target_s(4) == 0.01
    costs.add_target(3, 0.03)
    assert costs.curve(4) == [0.01, 0.01, 0.03, 0.03]


def test_a_dip_that_was_measured_is_kept() -> None:
    assert measured({1: 0.01, 4: 0.03, 5: 0.02}).curve(6) == [0.01, 0.01, 0.01, 0.03, 0.02, 0.02]


def test_what_was_tried_in_the_other_condition_only_is_scaled_by_what_was_tried_in_both() -> None:
    alone = measured({1: 0.010, 4: 0.016})
    beside = measured({1: 0.015}, alone)
    assert beside.target_s(4) == pytest.approx(0.024)
    beside.add_target(2, 0.030)
    assert alone.target_s(2) == pytest.approx(0.020)
    assert alone.target_s(4) == pytest.approx(0.016), "what was measured here counts"


def test_the_factor_between_the_conditions_is_the_geometric_mean() -> None:
    beside = measured({1: 0.010, 2: 0.040}, measured({1: 0.010, 2: 0.010, 3: 0.020}))
    assert beside.target_s(3) == pytest.approx(0.040)


def test_without_any_measurement_here_the_other_condition_is_taken_over() -> None:
    beside = CostModel(measured({1: 0.010, 4: 0.016}))
    assert beside.curve(4) == pytest.approx([0.010, 0.010, 0.010, 0.016])


def test_a_measurement_in_one_condition_is_seen_in_the_other_at_once() -> None:
    alone = measured({1: 0.010})
    beside = measured({1: 0.020}, alone)
    assert beside.target_s(2) == 0.020
    alone.add_target(2, 0.011)
    assert beside.target_s(2) == pytest.approx(0.022)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.floats(0.001, 1.0)), min_size=1, max_size=4))
def test_no_size_is_faster_than_one_token_while_that_was_seldom_measured(
    measurements: list[tuple[bool, int, float]],
) -> None:
    """A first decode that was disturbed must not make the target alone look slow for ever."""
    alone = CostModel()
    beside = CostModel(alone)
    for here, n, seconds in measurements:
        (beside if here else alone).add_target(n, seconds)
        for costs in (alone, beside):
            assert costs.target_s(1) <= min(costs.curve(8)) * (1 + 1e-9)


def test_one_token_may_be_slower_than_two_when_it_was_measured_often() -> None:
    """With llama.cpp one row takes other kernels than several."""
    costs = measured({1: 0.03, 2: 0.02})
    assert costs.target_s(1) == 0.02
    for _ in range(4):
        costs.add_target(1, 0.03)
    assert costs.target_s(1) == pytest.approx(0.03)


def test_a_disturbed_first_measurement_of_one_token_is_corrected_by_a_larger_batch() -> None:
    assert measured({1: 0.5, 2: 0.02}).target_s(1) == 0.02


def test_the_draft_is_taken_to_cost_the_same_in_a_condition_where_it_never_worked() -> None:
    alone = CostModel()
    beside = CostModel(alone)
    alone.add_draft(0.005)
    assert beside.draft_s == 0.005
    beside.add_draft(0.009)
    assert (alone.draft_s, beside.draft_s) == (0.005, 0.009)


def test_each_number_of_draft_threads_is_tried_three_times_and_then_the_fastest_is_taken() -> None:
    costs, tried = CostModel(), []
    seconds = {4: 0.008, 2: 0.005, 1: 0.006}
    for _ in range(12):
        n = costs.draft_threads((4, 2, 1))
        tried.append(n)
        costs.add_draft(seconds[n], n)
    assert tried == [4] * 3 + [2] * 3 + [1] * 3 + [2] * 3
    assert costs.draft_s == 0.005


def test_the_report_has_what_was_measured_here_in_ms() -> None:
    alone = measured({4: 0.016, 1: 0.010})
    assert alone.target_ms() == {"1": pytest.approx(10), "4": pytest.approx(16)}
    assert measured({1: 0.02}, alone).target_ms() == {"1": pytest.approx(20)}


def another_run(costs: CostModel) -> CostModel:
    """A cost model that begins with what this one has learned."""
    restored = CostModel()
    restored.restore(json.loads(json.dumps(costs.state())))
    return restored


def test_another_run_begins_with_what_was_learned() -> None:
    costs = measured({1: 0.010, 4: 0.016})
    costs.add_draft(0.005, 2)
    restored = another_run(costs)
    assert restored.curve(4) == pytest.approx([0.010] * 3 + [0.016])
    assert restored.draft_s == pytest.approx(0.005)
    restored.add_target(4, 0.030)
    restored.add_target(4, 0.030)
    assert restored.target_s(4) > 0.020, "what is measured now soon outweighs it"


def test_what_runs_do_not_measure_is_hoped_to_be_better_until_it_is_tried_again() -> None:
    costs = measured({1: 0.010, 4: 0.016})
    hoped = []
    for _ in range(8):
        costs = another_run(costs)
        costs.add_target(1, 0.010)
        hoped.append(costs.target_s(4) / 0.016)
    assert hoped[:3] == pytest.approx([1, HOPE, HOPE**2])
    assert hoped[-1] == pytest.approx(MOST_HOPE), "but not better and better"
    costs.add_target(4, 0.016)
    assert another_run(costs).target_s(4) == pytest.approx(costs.target_s(4)), "measured again: no more hope"


def test_what_was_not_measured_in_this_run_is_not_reported() -> None:
    restored = another_run(measured({1: 0.010, 4: 0.016}))
    restored.add_target(4, 0.016)
    assert restored.target_ms() == {"4": pytest.approx(16)}


def test_restoring_is_seen_in_the_other_condition_at_once() -> None:
    alone = CostModel()
    beside = CostModel(alone)
    assert beside.target_s(2) == 0
    alone.restore(measured({1: 0.010, 2: 0.020}).state())
    assert beside.target_s(2) == pytest.approx(0.020)


Damage = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("draft_s"),
        lambda state: state.pop("target_s"),
        lambda state: state["target_s"].update({"1": [0.0, 0]}),
        lambda state: state["target_s"].update({"1": [-1.0, 0]}),
        lambda state: state["target_s"].update({"1": [math.inf, 0]}),
        lambda state: state["target_s"].update({"1": [math.nan, 0]}),
        lambda state: state["target_s"].update({"1": [None, 0]}),
        lambda state: state["target_s"].update({"one": [0.1, 0]}),
        lambda state: state["target_s"].update({"0": [0.1, 0]}),
        lambda state: state["target_s"].update({"1": 0.1}),
        lambda state: state["target_s"].update({"1": [0.1, -1]}),
        lambda state: state["target_s"].update({"1": [0.1, 0.5]}),
        lambda state: state["draft_s"].update({"1": ["fast", 0]}),
    ],
)
def test_damaged_times_are_refused(damage: Damage) -> None:
    state = measured({1: 0.010}).state()
    damage(state)
    with pytest.raises((KeyError, TypeError, ValueError)):
        CostModel().restore(state)

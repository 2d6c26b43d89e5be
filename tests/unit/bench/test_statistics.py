"""Spread and speed-up."""

from __future__ import annotations

import random

import pytest

from duo.bench.statistics import Range, middle_and_quartiles, speed_up, student_quantile


def test_the_median_and_the_quartiles() -> None:
    assert middle_and_quartiles([5, 1, 2, 4, 3]) == Range(3, 2, 4)
    assert middle_and_quartiles([7]) == Range(7, None, None)
    assert middle_and_quartiles([]) is None


def test_a_speed_up_is_a_geometric_mean() -> None:
    assert speed_up([]) is None
    two = speed_up([2.0, 0.5])
    assert two is not None
    assert (round(two.middle, 9), two.low, two.high) == (1, None, None), "two do not show how far others vary"
    assert speed_up([1.25] * 5) == pytest.approx((1.25, 1.25, 1.25))


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    numbers = random.Random(7)
    found = [speed_up([1.3 * 2.0 ** numbers.gauss(0, 0.2) for _ in range(5)]) for _ in range(1000)]
    assert 930 <= sum((each.low or 2) <= 1.3 <= (each.high or 0) for each in found if each is not None) <= 970


def test_the_quantiles_are_those_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {freedom: student_quantile(freedom) for freedom in table} == pytest.approx(table, abs=5e-4)

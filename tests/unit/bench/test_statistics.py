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
    assert two.middle == pytest.approx(1.0)
    assert two.low is two.high is None  # two say nothing about how far others would lie apart
    same = speed_up([1.25] * 5)
    assert same is not None
    assert same == pytest.approx((1.25, 1.25, 1.25))


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    numbers = random.Random(7)
    held = 0
    for _ in range(1000):
        found = speed_up([1.3 * 2.0 ** numbers.gauss(0, 0.2) for _ in range(5)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.3 <= found.high
    assert 930 <= held <= 970


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_the_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-4)

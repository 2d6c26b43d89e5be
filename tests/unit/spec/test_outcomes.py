import pytest

from duo.spec.calibration import LEAST_CHANCE, likely


def test_the_most_likely_outcomes_come_first() -> None:
    found = likely([0.9, 0.5, 0.8], (0.6, 0.2), 4)
    assert [(position, rank) for _, position, rank in found] == [(1, 0), (1, 1), (0, 0), (2, 0)]
    assert [chance for chance, *_ in found] == pytest.approx([0.27, 0.09, 0.06, 0.054])


def test_outcomes_that_hardly_ever_come_true_are_left_out() -> None:
    assert likely([0.999, 0.5], (0.6,), 9) == [pytest.approx((0.999 * 0.5 * 0.6, 1, 0))]
    assert likely([1 - 2 * LEAST_CHANCE], (0.6, 0.3), 9) == [pytest.approx((1.2 * LEAST_CHANCE, 0, 0))]
    assert likely([], (0.6,), 9) == likely([0.5], (), 9) == likely([0.5], (0.6,), 0) == []

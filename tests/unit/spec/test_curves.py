import pytest

from duo.spec.constants import DEFAULT
from duo.spec.curves import increasing, interpolated


def test_a_curve_is_linear_between_known_sizes_and_assumed_beyond() -> None:
    assert interpolated({1: 10, 2: 12, 4: 18}, 4, DEFAULT) == pytest.approx([10, 12, 15, 18])
    first, second, *_, last = interpolated({1: 10}, 5, DEFAULT)
    assert (first, second) == pytest.approx((10, 10 * (1 + DEFAULT.second)))
    assert last == pytest.approx(10 * (1 + DEFAULT.second + 3 * DEFAULT.growth))
    assert interpolated({3: 10 * (1 + DEFAULT.second + DEFAULT.growth)}, 3, DEFAULT)[0] == pytest.approx(10)


def test_times_that_contradict_each_other_are_averaged_by_the_square_of_their_number() -> None:
    assert increasing({1: 10, 2: 12, 3: 11}, {}) == {1: 10, 2: 11.5, 3: 11.5}
    assert increasing({1: 10, 2: 12, 3: 11}, {2: 1, 3: 3})[2] == pytest.approx(11.1)
    assert increasing({1: 10, 2: 12}, {}) == {1: 10, 2: 12}

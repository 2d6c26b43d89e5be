import pytest

from duo.spec.constants import DEFAULT, assumed
from duo.spec.costs import interpolated, lowered


def test_a_curve_is_linear_between_known_sizes_and_assumed_beyond() -> None:
    assert interpolated({1: 10, 2: 12, 4: 18}, 4, DEFAULT) == pytest.approx([10, 12, 15, 18])
    assert interpolated({1: 10}, 5, DEFAULT) == pytest.approx([10, 13, 14, 15, 16])
    assert interpolated({3: 14}, 3, DEFAULT)[0] == pytest.approx(10)
    assert interpolated({1: 10, 8: 17}, 2, DEFAULT)[:2] == pytest.approx([10, 11]), "no assumption between"


@pytest.mark.parametrize(("doubt", "curve"), [(-1.0, [10, 10, 10.2]), (0.0, [10, 13, 14]), (1.0, [10, 19, 22])])
def test_what_is_assumed_is_a_range(doubt: float, curve: list[float]) -> None:
    assert interpolated({1: 10}, 3, DEFAULT, doubt) == pytest.approx(curve)


def test_doubt_goes_from_the_expected_value_to_a_better_or_a_worse_one() -> None:
    doubts = (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert [assumed((1.0, 2.0, 4.0), doubt) for doubt in doubts] == [1.0, 1.5, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({1: 10, 2: 12, 4: 18}, {1: 10, 2: 12, 4: 18}),
        ({1: 10, 2: 19, 4: 18}, {1: 10, 2: 18, 4: 18}),
        ({2: 19, 3: 25, 4: 18, 8: 17}, {2: 17, 3: 17, 4: 17, 8: 17}),
        ({1: 20, 2: 12, 4: 18}, {1: 20, 2: 12, 4: 18}),
        ({}, {}),
    ],
    ids=["increasing", "one", "all", "the first", "none"],
)
def test_several_tokens_take_no_longer_than_a_larger_batch_and_one_token_as_long_as_measured(
    known: dict[int, float], found: dict[int, float]
) -> None:
    assert lowered(known) == found

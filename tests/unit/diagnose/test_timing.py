"""When repeated times are reliable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duo.diagnose.timing import Group, MeasurementError, Series, contradictions, doubt

ALONE, DRAFT, BOTH = (1, 0), (0, 1), (1, 1)


def series(*seconds: float) -> Series:
    return Series("", times=list(seconds))


def group(threads: tuple[int, int], target_s: dict[int, float], draft_s: float | None = None) -> Group:
    target = {n: series(*3 * [seconds]) for n, seconds in target_s.items()}
    return Group(threads, target, None if draft_s is None else series(*3 * [draft_s]))


@pytest.mark.parametrize(
    ("times", "is_settled"),
    [
        ([1.0, 1.0], False),
        ([1.0, 1.02, 1.01], True),
        ([1.0, 1.0, 9.0], True),  # what disturbs makes a decode longer
        ([1.0, 2.0, 2.0], False),  # the fast one may be the right one
        ([1.0, 2.0, 2.0, *[2.0] * 9], True),
    ],
)
def test_times_are_settled_if_their_median_is_certain(times: list[float], is_settled: bool) -> None:
    assert series(*times).is_settled == is_settled


def test_disturbed_times_are_better_than_none() -> None:
    found = Series("", disturbed=[5.0, 1.0, 2.0, 3.0, 4.0])
    assert (found.is_known, found.is_settled, found.seconds) == (True, False, 2.0)
    assert not Series("").is_known
    partly = Group(ALONE, {1: series(1.0), 2: Series("")})
    assert partly.times == {1: 1.0}
    assert Group(ALONE, {1: Series(""), 2: series(1.0)}).times == {}


@pytest.mark.parametrize(
    "groups",
    [
        [group(ALONE, {1: 10.0, 4: 8.0})],  # four tokens in less than one takes
        [group(ALONE, {1: 1.0, 2: 10.0, 4: 8.0})],
        [group(ALONE, {1: 10.0}), group(BOTH, {1: 8.0}, 1.0)],  # faster beside the other model
        [group(DRAFT, {}, 10.0), group(BOTH, {1: 8.0}, 8.0)],
        [group(DRAFT, {}, 10.0), replace(group(DRAFT, {}, 8.0), n_tokens=2)],  # two tokens faster than one
    ],
)
def test_both_of_two_times_that_contradict_each_other_are_measured_again(groups: list[Group]) -> None:
    assert len(contradictions(groups)) == 1
    assert doubt(groups)
    assert len([each for found in groups for each in found.series if not each.times]) == 2


@pytest.mark.parametrize(
    "groups",
    [
        [group(ALONE, {1: 10.0, 4: 9.0})],  # noise
        [group((2, 0), {1: 10.0}), group(BOTH, {1: 8.0}, 1.0)],  # other numbers of threads
        [replace(group(DRAFT, {}, 9.0), n_tokens=2), group(DRAFT, {}, 5.0), group(BOTH, {1: 8.0}, 6.0)],
    ],
)
def test_what_is_plausible(groups: list[Group]) -> None:
    assert not doubt(groups)


def test_a_contradiction_that_remains_is_refused() -> None:
    found = group(ALONE, {1: 10.0, 4: 8.0})
    for _ in range(3):
        assert doubt([found])
        for each, seconds in zip(found.series, (10.0, 8.0), strict=True):
            each.times = 3 * [seconds]
    with pytest.raises(MeasurementError, match="contradict each other"):
        doubt([found])

import json
import math
import random
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.speculation.constants import DEFAULT
from duo.speculation.draft_costs import DraftCosts, TokenTimes
from duo.speculation.estimators import Time
from duo.speculation.target_costs import BatchTimes, TargetCosts


@pytest.mark.parametrize(
    ("kept", "times", "value"),
    [
        (0.0, [0.02, 0.02, 0.0301], 0.02),  # far too long: not used
        (0.0, [0.02, 0.02, 9.0], 0.02),
        (0.0, [0.02, 9.0, 9.0, 9.0, 0.02, 9.0, 9.0, 9.0], 0.02),  # not four in succession
        (0.02, [0.04], 0.02),
        (0.0, [*[0.02] * 50, 0.042, 0.04, 0.044, 0.044], 0.04),  # the least of four: disturbances make it longer
        (0.02, [0.04, 0.05, 0.044, 0.05], 0.04),
        (0.0, [*[0.02] * 50, 0.01], 0.01),  # far shorter: the new mean
        (0.02, [0.01], 0.01),
        (0.0, [0.02, 0.0299], 0.02),  # the smaller of the first two
        (0.0, [0.02, 0.02, 0.026], 0.022),
    ],
)
def test_a_time_that_is_far_from_the_mean_is_an_outlier_or_the_new_mean(
    kept: float, times: list[float], value: float
) -> None:
    time = Time(kept)
    for seconds in times:
        time.add(seconds)
    assert time.value == pytest.approx(value)


def learn(times: BatchTimes, target_s: Mapping[int, float], n_times: int = 1) -> None:
    for n, seconds in target_s.items():
        for _ in range(n_times):
            times.add(n, seconds)


def conditions(
    alone_s: Mapping[int, float], both_s: Mapping[int, float] | None = None, n_times: int = 1
) -> tuple[BatchTimes, BatchTimes]:
    """Of the target alone, and beside a draft."""
    costs = TargetCosts()
    found = costs.alone, costs.beside("draft")
    learn(found[0], alone_s, n_times)
    learn(found[1], both_s or {}, n_times)
    return found


def another_run(*conditions: BatchTimes) -> tuple[BatchTimes, BatchTimes]:
    """A run that begins with these, alone and beside a draft."""
    costs = TargetCosts()
    for times, name in zip(conditions, ("", "draft"), strict=False):
        costs.restore_times(
            json.loads(json.dumps({"0": {n: [t.value, t.spread] for n, t in times.times.items()}})), name
        )
    return costs.alone, costs.beside("draft")


@pytest.mark.parametrize(
    ("target_s", "curve"),
    [
        ({}, [0, 0, 0]),
        ({1: 10.0}, [10, 13, 14, 15]),  # a second token adds 30 %, each further one 10 %
        ({3: 14.0}, [10, 12, 14, 15]),  # one token is inferred from the smallest batch
        ({1: 10.0, 4: 16.0}, [10, 12, 14, 16, 17, 18]),  # linear between sizes
        ({1: 10.0, 2: 11.0, 4: 19.0}, [10, 11, 15, 19, 20]),
    ],
)
def test_curve_from_some_measured_sizes(target_s: dict[int, float], curve: list[float]) -> None:
    assert conditions(target_s)[0].curve(len(curve)) == pytest.approx(curve)


TIMES = st.dictionaries(st.integers(2, 10), st.floats(0.001, 1.0), max_size=5)


@given(one_s=st.floats(0.001, 1.0), alone_s=TIMES, both_s=TIMES, n_times=st.integers(1, 6))
def test_doubt_never_makes_a_batch_faster_nor_a_larger_one_of_several_tokens_faster_than_a_smaller(
    one_s: float, alone_s: dict[int, float], both_s: dict[int, float], n_times: int
) -> None:
    for costs in conditions({1: one_s, **alone_s}, both_s, n_times):
        curves = [costs.curve(12, doubt) for doubt in (-1.0, 0.0, 1.0)]
        for curve in curves:
            several = curve[min({*alone_s, *both_s}, default=1) - 1 :]
            assert all(low <= high * (1 + 1e-9) for low, high in pairwise(several))
        for fast, slow in pairwise(curves):
            assert all(low <= high * (1 + 1e-9) for low, high in zip(fast, slow, strict=True))


def test_what_was_not_measured_is_inferred_from_the_other_condition() -> None:
    (better, usual, worse), (alone, both) = DEFAULT.slower, conditions({})
    assert both.seconds(2) == 0
    alone.add(1, 10.0)
    assert both.seconds(1) == pytest.approx(10 * usual), "as much slower as usual"
    assert both.seconds(1, 1.0) > worse * 10 > better * 10 > both.seconds(1, -1.0)
    alone.add(4, 16.0)
    both.add(1, 20.0)
    assert both.seconds(4) == pytest.approx(32), "as much slower as where both were measured"
    both.add(2, 30.0)
    assert alone.seconds(2) == pytest.approx(15)
    both.add(4, 64.0)
    assert alone.seconds(2) == pytest.approx(30 / math.sqrt(8)), "the geometric mean of 2 and 4"
    assert alone.seconds(4) == 16, "what was measured here counts"
    assert another_run(*conditions({4: 20.0}, {4: 64.0}))[0].seconds(4) == pytest.approx(20)


def test_what_is_measured_with_one_draft_is_known_to_another_at_once() -> None:
    costs = TargetCosts()
    learn(costs.alone, {1: 10.0, 4: 16.0})
    learn(costs.beside("first"), {1: 30.0})
    assert costs.beside("second").seconds(4) == pytest.approx(16 * DEFAULT.slower[1])
    assert costs.beside("apart", is_apart=True).curve(4) == pytest.approx(costs.alone.curve(4))
    costs.alone.add(8, 40.0)
    assert costs.beside("second").seconds(8) == pytest.approx(40 * DEFAULT.slower[1])


def test_the_drafts_time_for_two_tokens_is_assumed_until_it_was_measured_and_never_less_than_for_one() -> None:
    times, (better, usual, worse) = DraftCosts(is_apart=False).alone, DEFAULT.pair
    assert times.pair_s() == 0
    times.add(1.0)
    assert [times.pair_s(doubt) for doubt in (-1.0, 0.0, 1.0)] == pytest.approx([0.9 * better, usual, 1.1 * worse])
    times.add_pair(1.5)
    assert (times.pair_s(), times.token_s) == (1.5, 1.0)
    times.add_pair(0.8)
    assert times.pair_s() == 1.0


def test_a_time_that_shifts_takes_all_others_along() -> None:
    """The machine has changed: fewer cores, or another clock."""
    alone, both = conditions({1: 10.0, 4: 16.0}, {1: 20.0}, 9)
    assert [alone.add(1, 30.0) for _ in range(DEFAULT.few - 1)] == [1.0] * (DEFAULT.few - 1)
    assert alone.seconds(4) == 16, "so few of them may be a disturbance"
    assert alone.add(1, 30.0) == pytest.approx(3), "those of the draft follow"
    assert (alone.seconds(1), alone.seconds(4), both.seconds(1)) == pytest.approx((30, 48, 60))


@pytest.mark.parametrize(
    ("now", "factor"), [([10.0], 0.25), ([35.0], 1.0), ([100.0], 1.0), ([100.0] * DEFAULT.few, 2.5), ([35.0, 2.0], 1.0)]
)
def test_one_token_that_contradicts_what_was_kept_scales_all_that_was(now: list[float], factor: float) -> None:
    """The machine was busy in the earlier run, or is so now."""
    alone, both = another_run(*conditions({1: 40.0, 2: 52.0, 3: 64.0}, {1: 60.0}, 50))
    told = math.prod(alone.add(1, seconds) for seconds in now)
    found = alone.seconds(2), alone.seconds(3), both.seconds(1), 20 * told
    assert found == pytest.approx((52 * factor, 64 * factor, 60 * factor, 20 * factor))
    assert (alone.was_wrong, alone.is_doubted) == (False, False)


def test_several_tokens_that_contradict_what_was_kept_make_other_kept_ones_forgotten() -> None:
    alone, both = another_run(*conditions({1: 10.0, 4: 30.0, 8: 50.0}, {1: 15.0, 8: 75.0}))
    learn(alone, {1: 10.0, 2: 11.0}, 2)
    alone.add(4, 14.0)
    assert (alone.was_wrong, alone.is_doubted) == (True, False), "T(1) was measured"
    assert [alone.time(n).n for n in (1, 2, 4, 8)] == [3, 2, 1, 0]
    assert [both.time(n).n for n in (1, 8)] == [1, 0]
    alone.begin()
    assert not alone.was_wrong


@pytest.mark.parametrize(("n_decodes", "factor"), [(DEFAULT.few - 1, 1.0), (DEFAULT.few + 1, 0.75)])
def test_sizes_that_a_text_does_not_use_change_like_those_that_it_uses(n_decodes: int, factor: float) -> None:
    """Schedule sync does not measure T(1): what a run on a slower machine had measured would remain."""
    alone, both = another_run(*conditions({1: 0.38, 4: 0.4, 5: 0.5}, {1: 0.6}))
    for _ in range(2):
        alone.begin()
        both.begin()
        learn(alone, {4: 0.3}, n_decodes)
        learn(alone, {5: 0.375}, n_decodes // 5)
    assert another_run(alone)[0].seconds(4) / 0.4 == pytest.approx(0.75, abs=0.06)
    assert (alone.seconds(1), both.seconds(1)) == pytest.approx((0.38 * factor, 0.6 * factor), rel=0.08)


@pytest.mark.parametrize(("n_decodes", "factor"), [(10, 1.0), (100, 1.05)])
def test_a_small_change_of_the_target_alone_holds_for_several_tokens_once_it_is_certain(
    n_decodes: int, factor: float
) -> None:
    """After a text with a long prompt, several tokens would seem cheaper than they are."""
    alone, _ = another_run(*conditions({1: 0.1, 2: 0.12, 4: 0.15}))
    alone.begin()
    learn(alone, {1: 0.105}, n_decodes)
    assert [alone.seconds(n) for n in (2, 4)] == pytest.approx([0.12 * factor, 0.15 * factor], rel=0.01)


@pytest.mark.parametrize(("n_decodes", "found_s"), [(DEFAULT.few - 1, 0.0), (DEFAULT.few, 0.11)])
def test_the_time_alone_in_a_text_follows_from_a_few_decodes_of_sizes_known_before(
    n_decodes: int, found_s: float
) -> None:
    """They take 1.1 times as long as before, so one token does too."""
    alone, _ = conditions({1: 0.1, 4: 0.2}, n_times=9)
    alone.begin()
    alone.add(8, 0.5)  # unknown before
    learn(alone, {4: 0.22}, n_decodes)
    assert alone.one_here_s() == pytest.approx(found_s)


def test_the_spread_is_learned_and_kept() -> None:
    """Doubt is about the mean: it becomes less with each measurement."""
    dice, (alone, _), doubts = random.Random(0), conditions({}), []
    for n in range(200):
        alone.add(1, 10 * math.exp(dice.gauss(0, 0.02)))
        if n in (0, 9, 199):
            doubts.append(alone.seconds(1, 1.0) / alone.seconds(1) - 1)
    assert doubts[0] == pytest.approx(0.1), "before it is known"
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[-1] == pytest.approx(0.02 * math.sqrt(0.05 / 2), rel=0.3)
    restored, _ = another_run(alone)
    assert restored.seconds(1, 1.0) / restored.seconds(1) - 1 == pytest.approx(0.02, rel=0.3), "one measurement"


def kept(costs: DraftCosts) -> TokenTimes:
    """The times alone, in another run."""
    again = DraftCosts(is_apart=False)
    again.restore(json.loads(json.dumps(costs.state())))
    return again.alone


def test_the_drafts_time_for_several_sequences_is_learned_like_the_targets_for_several_tokens() -> None:
    def curve(times: Mapping[int, float]) -> list[float]:
        costs = DraftCosts(is_apart=False)
        for n, seconds in times.items():
            for _ in range(5):
                costs.alone.add(seconds, n_sequences=n)
        assert costs.alone.seconds(1.0, 3) > costs.alone.seconds(0.0, 3)
        return [kept(costs).seconds(0.0, n) for n in range(1, 10)]

    assert curve({1: 0.010, 3: 0.012, 9: 0.018}) == pytest.approx([(10 + n) / 1000 for n in range(9)])
    noisy = curve({1: 0.010, 2: 0.006, 5: 0.011, 9: 0.0109})
    assert all(low <= high for low, high in pairwise(noisy)), "never less for more sequences"
    assert noisy[0] == pytest.approx(0.010), "not disturbed"


def test_one_slow_decode_of_several_sequences_says_nothing_about_the_next() -> None:
    """A GPU prepares each number of sequences when it is first used, and a slow one would not be used again."""
    costs = DraftCosts(is_apart=False)
    for n, ms in ((1, 2.0), (1, 2.0), (5, 2.4), (5, 2.4), (9, 11.7)):
        costs.alone.add(ms, n_sequences=n)
    assert costs.alone.seconds(0.0, 9) == kept(costs).seconds(0.0, 9) == pytest.approx(3.2)
    for _ in range(2):
        costs.alone.add(3.3, n_sequences=9)
    assert costs.alone.seconds(0.0, 9) == kept(costs).seconds(0.0, 9) == 3.3


def test_sizes_that_a_text_has_not_used_are_near_the_line_between_those_that_it_has() -> None:
    """A profile from long texts has long times: larger batches seem to cost nothing, and none between is tried."""
    alone, _ = another_run(*conditions({1: 12.0, 4: 60.0, 6: 20.0, 8: 70.0, 9: 72.0}))
    alone.begin()
    for n, ms in {1: 10.0, 8: 38.0}.items():
        alone.times[n].value = ms
        alone.add(n, ms)
    assert alone.curve(9)[3] == pytest.approx(20.0), "none takes longer than a larger batch"
    alone.times[6].value = 60.0
    alone.forget_curves()
    assert alone.curve(9)[3:6] == pytest.approx([24.2, 28.6, 33.0])
    alone.add(4, 36.0)
    assert alone.curve(9)[3] == 36.0, "it was measured here"

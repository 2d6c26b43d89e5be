import json
import math
import random
from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.calibration import Calibration
from duo.spec.constants import DEFAULT
from duo.spec.costs import CostModel
from duo.spec.means import Time

SURE, DOUBTFUL = 9.0, 0.0
SLOWER = (1.2, 1.5, 1.9)  # how much slower both models are concurrently
AS_FAST = (1.0, 1.0, 1.0)


def share_of(calibration: Calibration, confidence: float) -> float:
    return calibration.probabilities()[bisect_right(Calibration.EDGES, confidence)]


# Means


def timed(*seconds: float, kept: float = 0.0) -> Time:
    time = Time(kept, DEFAULT.kept) if kept else Time()
    for value in seconds:
        time.add(value)
    return time


def test_a_time_that_is_far_too_long_is_not_used() -> None:
    assert timed(0.02, 0.02, 0.0299).value > 0.02
    assert timed(0.02, 0.02, 0.0301).value == timed(0.02, 0.02, 9.0).value == 0.02
    assert timed(0.02, 9.0, 9.0, 0.02, 9.0, 9.0).value == 0.02, "not three in succession"
    assert timed(0.04, kept=0.02).value == 0.02


def test_three_times_in_succession_that_are_far_longer_are_the_new_mean() -> None:
    assert timed(*[0.02] * 50, 0.042, 0.04, 0.044).value == 0.04, "the least of them: disturbances make it longer"
    assert timed(0.04, 0.05, 0.044, kept=0.02).value == 0.04


def test_a_time_that_is_far_shorter_is_the_new_mean() -> None:
    assert timed(*[0.02] * 50, 0.01).value == 0.01
    assert timed(*[0.02] * 50, 0.014).value > 0.019, "not far"
    assert timed(0.01, kept=0.02).value == 0.01


# The cost curve


def conditions() -> tuple[CostModel, CostModel]:
    """Of one model at a time, and of both concurrently."""
    alone, beside = CostModel(), CostModel()
    alone.relatives, beside.relatives = [(beside, AS_FAST)], [(alone, SLOWER)]
    return alone, beside


def learn_target(costs: CostModel, target_s: Mapping[int, float], n_times: int = 1) -> CostModel:
    for n, seconds in target_s.items():
        for _ in range(n_times):
            costs.add_target(n, seconds)
    return costs


def measured(target_s: Mapping[int, float], n_times: int = 1) -> CostModel:
    return learn_target(CostModel(), target_s, n_times)


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
    assert measured(target_s).curve(len(curve)) == pytest.approx(curve)


TIMES = st.dictionaries(st.integers(2, 10), st.floats(0.001, 1.0), max_size=5)


@given(one_s=st.floats(0.001, 1.0), alone_s=TIMES, beside_s=TIMES, n_times=st.integers(1, 6))
def test_doubt_never_makes_a_batch_faster_nor_a_larger_one_of_several_tokens_faster_than_a_smaller(
    one_s: float, alone_s: dict[int, float], beside_s: dict[int, float], n_times: int
) -> None:
    alone, beside = conditions()
    learn_target(alone, {1: one_s, **alone_s}, n_times)
    learn_target(beside, beside_s, n_times)
    for costs in (alone, beside):
        curves = [costs.curve(12, doubt) for doubt in (-1.0, 0.0, 1.0)]
        for curve in curves:
            several = curve[min({*alone_s, *beside_s}, default=1) - 1 :]
            assert all(low <= high * (1 + 1e-9) for low, high in pairwise(several))
        for fast, slow in pairwise(curves):
            assert all(low <= high * (1 + 1e-9) for low, high in zip(fast, slow, strict=True))


def test_what_was_not_measured_is_inferred_from_the_other_condition() -> None:
    alone, beside = conditions()
    assert beside.target_s(2) == beside.draft_s == 0
    alone.add_target(1, 10.0)
    assert beside.target_s(1) == pytest.approx(15), "as much slower as usual"
    assert beside.curve(1, 1.0)[0] > 1.9 * 10 > 1.2 * 10 > beside.curve(1, -1.0)[0]
    alone.add_target(4, 16.0)
    beside.add_target(1, 20.0)
    assert beside.target_s(4) == pytest.approx(32), "as much slower as where both were measured"
    beside.add_target(2, 30.0)
    assert alone.target_s(2) == pytest.approx(15)
    beside.add_target(4, 64.0)
    assert alone.target_s(2) == pytest.approx(30 / math.sqrt(8)), "the geometric mean of 2 and 4"
    assert alone.target_s(4) == 16, "what was measured here counts"


def test_the_drafts_time_for_two_tokens_is_assumed_until_it_was_measured_and_never_less_than_for_one() -> None:
    costs = CostModel()
    assert costs.pair_time() == 0
    costs.add_draft(1.0)
    assert [costs.pair_time(doubt) for doubt in (-1.0, 0.0, 1.0)] == pytest.approx([0.9, 1.3, 1.9 * 1.1])
    costs.add_pair(1.5)
    assert costs.pair_time() == 1.5
    assert costs.draft_s == 1.0
    cheap = CostModel()
    cheap.add_draft(1.0)
    cheap.add_pair(0.8)
    assert cheap.pair_time() == 1.0


def test_new_measurements_take_effect_at_once_in_both_conditions() -> None:
    alone, beside = conditions()
    alone.add_target(1, 10.0)
    beside.add_target(1, 20.0)
    for costs in (alone, beside):
        costs.curve(4)
    alone.add_target(4, 16.0)
    assert (alone.target_s(4), beside.target_s(4)) == pytest.approx((16, 32))
    alone.restore(measured({4: 20.0}).state())
    assert (alone.target_s(4), beside.target_s(4)) == pytest.approx((20, 40))


def test_a_time_that_shifts_takes_all_others_along() -> None:
    """The machine has changed: fewer cores, or another clock."""
    alone, beside = conditions()
    learn_target(alone, {1: 10.0, 4: 16.0}, 9)
    learn_target(beside, {1: 20.0})
    alone.add_draft(2.0)
    learn_target(alone, {1: 30.0}, 2)
    assert alone.target_s(4) == 16, "two of them may be a disturbance"
    alone.add_target(1, 30.0)
    assert (alone.target_s(1), alone.target_s(4), alone.draft_s, beside.target_s(1)) == pytest.approx((30, 48, 6, 60))


# The number of the draft's threads


def test_the_number_of_threads_that_may_be_the_fastest_is_used() -> None:
    costs, tried = CostModel(), []
    seconds = {4: 8.0, 2: 5.0, 1: 5.2}
    for _ in range(12):
        tried.append(costs.draft_threads((4, 2, 1)))
        costs.add_draft(seconds[tried[-1]], tried[-1])
    assert tried[:3] == [4, 2, 1]
    assert tried.count(4) == 1, "clearly slower"
    assert tried.count(1) > 1, "it might be the fastest"
    assert tried[-1] == 2
    assert costs.knows_draft(4)
    assert not costs.knows_draft(3)


# Kept between runs


def another_run(costs: CostModel) -> CostModel:
    """A cost model that begins with what this one has learned."""
    restored = CostModel()
    restored.restore(json.loads(json.dumps(costs.state())))
    return restored


@pytest.mark.parametrize(
    ("now", "factor"), [([10.0], 0.25), ([35.0], 1.0), ([100.0], 1.0), ([100.0] * 3, 2.5), ([35.0, 2.0], 1.0)]
)
def test_one_token_that_contradicts_what_was_kept_scales_all_that_was(now: list[float], factor: float) -> None:
    """The machine was busy in the earlier run, or is so now."""
    alone, beside = conditions()
    alone.restore({**measured({1: 40.0, 2: 52.0, 3: 64.0}, 50).state(), "draft_s": {"1": [20.0, 0.1]}})
    beside.restore(measured({1: 60.0}).state())
    for seconds in now:
        alone.add_target(1, seconds)
    found = alone.target_s(2), alone.target_s(3), alone.draft_s, beside.target_s(1)
    assert found == pytest.approx((52 * factor, 64 * factor, 20 * factor, 60 * factor))
    assert (alone.was_wrong, alone.is_doubted) == (False, False)


def test_several_tokens_that_contradict_what_was_kept_make_other_kept_ones_forgotten() -> None:
    alone, beside = conditions()
    alone.restore(measured({1: 10.0, 4: 30.0, 8: 50.0}).state())
    beside.restore(measured({1: 15.0, 8: 75.0}).state())
    learn_target(alone, {1: 10.0, 2: 11.0}, 2)
    alone.add_target(4, 14.0)
    assert alone.was_wrong
    assert not alone.is_doubted, "T(1) was measured"
    assert [alone.target(n).n for n in (1, 2, 4, 8)] == [3, 2, 1, 0]
    assert [beside.target(n).n for n in (1, 8)] == [1, 0]
    alone.begin()
    assert not alone.was_wrong


@pytest.mark.parametrize(("n_decodes", "factor"), [(4, 1.0), (5, 0.75)])
def test_sizes_that_a_text_does_not_use_change_like_those_that_it_uses(n_decodes: int, factor: float) -> None:
    """Schedule sync does not measure T(1): what a run on a slower machine had measured would remain."""
    alone, beside = conditions()
    alone.restore(measured({1: 0.38, 4: 0.4, 5: 0.5}).state())
    beside.restore(measured({1: 0.6}).state())
    for _ in range(2):
        alone.begin()
        beside.begin()
        learn_target(alone, {4: 0.3}, n_decodes)
        learn_target(alone, {5: 0.375}, n_decodes // 5)
    now = another_run(alone).target_s(4) / 0.4
    assert now == pytest.approx(0.75, abs=0.06)
    assert (alone.target_s(1), beside.target_s(1)) == pytest.approx((0.38 * factor, 0.6 * factor), rel=0.08)
    assert another_run(alone).target_s(1) == alone.target_s(1)


def test_one_disturbed_decode_changes_no_other_size() -> None:
    alone, beside = conditions()
    alone.restore(measured({1: 0.1, 4: 0.13, 8: 0.2}).state())
    beside.restore(measured({1: 0.15}).state())
    learn_target(alone, {1: 0.1}, 50)
    alone.add_target(4, 0.18)
    assert (alone.target_s(1), alone.target_s(8), beside.target_s(1)) == pytest.approx((0.1, 0.2, 0.15))


@pytest.mark.parametrize(("n_decodes", "found_s"), [(4, 0.0), (5, 0.11)])
def test_the_time_alone_in_a_text_follows_from_five_decodes_of_sizes_known_before(
    n_decodes: int, found_s: float
) -> None:
    """They take 1.1 times as long as before, so one token does too."""
    costs = measured({1: 0.1, 4: 0.2}, 9)
    costs.begin()
    costs.add_target(8, 0.5)  # unknown before
    learn_target(costs, {4: 0.22}, n_decodes)
    assert costs.alone_here_s() == pytest.approx(found_s)


def test_the_spread_is_learned_and_kept() -> None:
    """Doubt is about the mean: it becomes less with each measurement."""
    dice = random.Random(0)
    costs = CostModel()
    doubts = []
    for n in range(200):
        costs.add_target(1, 10 * math.exp(dice.gauss(0, 0.02)))
        if n in (0, 9, 199):
            doubts.append(costs.curve(1, 1.0)[0] / costs.target_s(1) - 1)
    assert doubts[0] == pytest.approx(0.1), "before it is known"
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[-1] == pytest.approx(0.02 * math.sqrt(0.05 / 2), rel=0.3)
    restored = another_run(costs)
    assert restored.curve(1, 1.0)[0] / restored.target_s(1) - 1 == pytest.approx(0.02, rel=0.3), "one measurement"


# Calibration


def learn(calibration: Calibration, acceptance: float, n: int, seed: int = 0) -> Calibration:
    dice = random.Random(seed)
    for _ in range(n):
        calibration.add(1.0, dice.random() < acceptance)
    return calibration


def test_calibration_learns_the_acceptance_of_each_confidence() -> None:
    calibration = Calibration()
    assert share_of(calibration, DOUBTFUL) < calibration.mean < share_of(calibration, SURE), "the prior"
    other = share_of(calibration, SURE)
    for accepted, n in ((True, 100), (False, 200)):
        for _ in range(n):
            calibration.add(DOUBTFUL, accepted)
        assert abs(share_of(calibration, DOUBTFUL) - accepted) < 0.1
        if accepted:
            assert share_of(calibration, SURE) == other


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.0), (0.0, 0.85), (0.2, 0.8)])
def test_calibration_follows_a_change_of_the_text(before: float, after: float) -> None:
    """That of a confidence soon, the mean more slowly."""
    for n, least_here, least in ((60, 0.6, 0.4), (200, 0.9, 0.8)):
        calibrations = [learn(learn(Calibration(), before, 500, seed), after, n, seed + 100) for seed in range(10)]
        here, all_of_them = mean(share_of(c, 1.0) for c in calibrations), mean(c.mean for c in calibrations)
        assert (here - before) / (after - before) > least_here
        assert (all_of_them - before) / (after - before) > least


def test_another_run_begins_with_the_learned_acceptance_as_that_of_12_candidates() -> None:
    calibration, restored = learn(Calibration(), 0.3, 500), Calibration()
    calibration.begin()
    restored.restore(json.loads(json.dumps(calibration.state())))
    assert restored.probabilities() == pytest.approx(calibration.probabilities())
    assert np.asarray(restored.chances(0.5)) == pytest.approx(np.asarray(calibration.chances(0.5)))
    assert (restored.mean, restored.n_scored) == (calibration.mean, DEFAULT.texts)
    assert restored.sd == pytest.approx(math.sqrt(restored.mean * (1 - restored.mean) / 12))
    assert learn(restored, 1.0, 12).mean == pytest.approx((1 + calibration.mean) / 2)


def test_a_text_begins_with_the_acceptance_of_all_texts_not_of_the_last_one() -> None:
    calibration = learn(learn(learn(Calibration(), 0.9, 256), 0.9, 256), 0.3, 256)
    assert calibration.mean == pytest.approx(0.3, abs=0.1)
    calibration.begin()
    assert calibration.mean == pytest.approx(0.65, abs=0.1)
    assert learn(calibration, 0.3, 48).mean < 0.4, "this text counts more"


@given(acceptance=st.floats(0, 1), n=st.integers(0, 300), wanted=st.floats(0, 1))
def test_chances_are_of_all_candidates_and_adjusted_to_a_mean(acceptance: float, n: int, wanted: float) -> None:
    found = learn(Calibration(), acceptance, n).chances(wanted)
    assert sum(share for share, _ in found) == pytest.approx(1)
    assert sum(share * chance for share, chance in found) == pytest.approx(wanted, abs=1e-9)
    assert all(-1e-9 <= chance <= 1 + 1e-9 for _, chance in found)


@pytest.mark.parametrize(
    ("known", "now", "is_better", "n_for_half"),
    [(0.2, 0.9, True, 2), (0.8, 0.1, False, 2), (0.7, 0.8, False, 50)],
)
def test_scores_that_contradict_earlier_texts_make_these_count_for_little(
    known: float, now: float, is_better: bool, n_for_half: int
) -> None:
    calibration = learn(Calibration(), known, 500)
    before = calibration.mean
    assert calibration.doubt(now, 20) is is_better
    for _ in range(n_for_half):
        calibration.add(1.0, True)
    assert (calibration.mean - before) / (1 - before) == pytest.approx(0.5, abs=0.15)


# Several sequences of the draft


def drafting(times: Mapping[int, float]) -> CostModel:
    return learn_draft(CostModel(), times)


def draft_curve(costs: CostModel, n: int) -> list[float]:
    return [costs.draft_time(0.0, i) for i in range(1, n + 1)]


def learn_draft(costs: CostModel, times: Mapping[int, float]) -> CostModel:
    for n, seconds in times.items():
        for _ in range(5):
            costs.add_draft(seconds, n_sequences=n)
    return costs


def test_the_draft_s_time_for_several_sequences_is_learned_like_the_target_s_for_several_tokens() -> None:
    costs = drafting({1: 0.010, 3: 0.012, 9: 0.018})
    assert costs.draft_s == costs.draft_time(0.0, 1) == pytest.approx(0.010)
    assert draft_curve(costs, 9) == pytest.approx([(10 + n) / 1000 for n in range(9)])
    assert costs.draft_time(1.0, 3) > costs.draft_time(0.0, 3)
    noisy = drafting({1: 0.010, 2: 0.006, 5: 0.011, 9: 0.0109})
    assert all(low <= high for low, high in pairwise(draft_curve(noisy, 9))), "never less for more sequences"
    assert noisy.draft_s == pytest.approx(0.010), "not disturbed"


def test_sequences_and_ranks_are_kept() -> None:
    costs, calibration = drafting({1: 0.010, 5: 0.012}), learn(Calibration(), 0.5, 9)
    for rank in (0, 0, 0, 2, -1):
        calibration.add_rank(rank)
    kept, kept_ranks = CostModel(), Calibration()
    kept.restore(json.loads(json.dumps(costs.state())))
    kept_ranks.restore(json.loads(json.dumps(calibration.state())))
    assert draft_curve(kept, 5) == pytest.approx(draft_curve(costs, 5))
    assert kept_ranks.ranks == pytest.approx(calibration.ranks)


def test_ranks_follow_what_the_target_chose_instead() -> None:
    calibration = Calibration()
    assert calibration.ranks == DEFAULT.ranks
    for i in range(400):
        calibration.add_rank((1, 1, 2, -1)[i % 4])
    assert calibration.ranks == pytest.approx((0, 0.5, 0.25), abs=0.03)


# What is computed from T(n)

import json
import math
import random
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.speculation.acceptance import LEAST_CHANCE, N_DEPTHS, Acceptance, at_depth, bin_of, likely
from duo.speculation.constants import DEFAULT

SURE, DOUBTFUL = 9.0, 0.0


def share_of(calibration: Acceptance, confidence: float) -> float:
    return calibration.probabilities()[bisect_right(Acceptance.EDGES, confidence)]


def learn(calibration: Acceptance, acceptance: float, n: int) -> Acceptance:
    dice = random.Random(0)
    for _ in range(n):
        calibration.add(1.0, dice.random() < acceptance)
    return calibration


def test_calibration_learns_the_acceptance_of_each_confidence() -> None:
    calibration = Acceptance()
    assert share_of(calibration, DOUBTFUL) < calibration.mean < share_of(calibration, SURE), "the prior"
    sure = share_of(calibration, SURE)
    for _ in range(100):
        calibration.add(DOUBTFUL, True)
    assert share_of(calibration, DOUBTFUL) > 0.9
    assert share_of(calibration, SURE) == sure


def test_another_run_begins_with_the_learned_acceptance_as_that_of_12_candidates() -> None:
    calibration, restored = learn(Acceptance(), 0.3, 500), Acceptance()
    for rank in (0, 0, 0, 2, -1):
        calibration.add_rank(rank)
    calibration.begin()
    restored.restore(json.loads(json.dumps(calibration.state())))
    assert restored.probabilities() == pytest.approx(calibration.probabilities())
    assert restored.ranks == pytest.approx(calibration.ranks)
    assert np.asarray(restored.chances(0.5)) == pytest.approx(np.asarray(calibration.chances(0.5)))
    assert (restored.mean, restored.n_scored) == (calibration.mean, DEFAULT.horizon)
    assert restored.sd == pytest.approx(math.sqrt(restored.mean * (1 - restored.mean) / 12))
    assert learn(restored, 1.0, 12).mean == pytest.approx((1 + calibration.mean) / 2)


def test_a_text_begins_with_the_acceptance_of_all_texts_not_of_the_last_one() -> None:
    calibration = learn(learn(learn(Acceptance(), 0.9, 256), 0.9, 256), 0.3, 256)
    assert calibration.mean == pytest.approx(0.3, abs=0.1)
    calibration.begin()
    assert calibration.mean == pytest.approx(0.5, abs=0.1)
    assert learn(calibration, 0.3, 48).mean < 0.4, "this text counts more"


@given(acceptance=st.floats(0, 1), n=st.integers(0, 300), wanted=st.floats(0, 1))
def test_chances_are_of_all_candidates_and_adjusted_to_a_mean(acceptance: float, n: int, wanted: float) -> None:
    found = learn(Acceptance(), acceptance, n).chances(wanted)
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
    calibration = learn(Acceptance(), known, 500)
    before = calibration.mean
    assert calibration.doubt(now, 20) is is_better
    for _ in range(n_for_half):
        calibration.add(1.0, True)
    assert (calibration.mean - before) / (1 - before) == pytest.approx(0.5, abs=0.15)


def test_ranks_follow_what_the_target_chose_instead() -> None:
    calibration = Acceptance()
    assert calibration.ranks == DEFAULT.ranks
    for i in range(400):
        calibration.add_rank((1, 1, 2, -1)[i % 4])
    assert calibration.ranks == pytest.approx((0, 0.5, 0.25), abs=0.03)


def test_the_most_likely_outcomes_come_first_and_those_that_hardly_ever_come_true_are_left_out() -> None:
    found = likely([0.9, 0.5, 0.8], (0.6, 0.2), 4)
    assert [(position, rank) for _, position, rank in found] == [(1, 0), (1, 1), (0, 0), (2, 0)]
    assert [chance for chance, *_ in found] == pytest.approx([0.27, 0.09, 0.06, 0.054])
    assert likely([1 - 2 * LEAST_CHANCE], (0.6, 0.3), 9) == [pytest.approx((1.2 * LEAST_CHANCE, 0, 0))]
    assert likely([], (0.6,), 9) == likely([0.5], (), 9) == likely([0.5], (0.6,), 0) == []


# By depth, for heads


@given(confidence=st.floats(0, math.inf), depth=st.integers(0, 9))
def test_each_depth_has_bins_of_its_own_and_the_last_one_stands_for_all_further_ones(
    confidence: float, depth: int
) -> None:
    n = len(Acceptance.EDGES) + 1
    alone = bin_of(confidence, n)
    assert alone == bisect_right(Acceptance.EDGES, confidence)
    assert bin_of(at_depth(confidence, depth), N_DEPTHS * n) == min(depth, N_DEPTHS - 1) * n + alone


def test_a_head_learns_what_its_deeper_candidates_are_worth() -> None:
    calibration, dice = Acceptance(N_DEPTHS), random.Random(3)
    shares = [0.9, 0.6, 0.5, 0.2]
    for i in range(4000):
        depth = i % N_DEPTHS
        calibration.add(at_depth(dice.choice([0.1, 1.2, 7.0]), depth), dice.random() < shares[depth])
    found = [sum(map(math.prod, group)) for group in calibration.by_depth(calibration.mean)]
    assert found == pytest.approx(shares, abs=0.15)
    assert sum(share for share, _ in calibration.by_depth(0.5)[2]) == pytest.approx(1)
    restored = Acceptance()  # as what checks a profile
    restored.restore(json.loads(json.dumps(calibration.state())))
    assert restored.n_depths == N_DEPTHS
    assert restored.probabilities() == pytest.approx(calibration.probabilities(), abs=0.05)


def test_deeper_candidates_of_a_useless_head_are_not_expected_to_be_better() -> None:
    calibration = Acceptance(N_DEPTHS)
    for _ in range(200):
        calibration.add(1.2, False)
    found = [group[bisect_right(Acceptance.EDGES, 1.2)][1] for group in calibration.by_depth(calibration.mean)]
    assert max(found) < 0.1

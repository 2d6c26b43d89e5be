import json
import math
import random
from collections.abc import Mapping
from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.constants import DEFAULT
from duo.spec.costs import Calibration, CostModel, Mean, Time

SURE, DOUBTFUL = 9.0, 0.0
DELETE = object()


# Means


def test_a_mean_weights_the_first_values_equally_and_forgets_them_later() -> None:
    running = Mean(weight=0.1)
    for value in (1, 2, 3):
        running.add(value)
    assert running.value == 2
    for _ in range(100):
        running.add(7)
    assert running.value == pytest.approx(7, abs=0.01)
    started = Mean(value=1.0, n=3)  # begins with a value that counts as three
    started.add(5.0)
    assert started.value == 2


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        ([0.01, 0.022], 0.01, 0.01),  # the better of the first two
        ([0.022, 0.01], 0.01, 0.01),
        ([9.0, *[0.02] * 6], 0.02, 0.023),  # one interruption, whenever it is
        ([0.02, 9.0, *[0.02] * 5], 0.02, 0.023),
        ([*[0.02] * 5, 9.0, 0.02], 0.02, 0.023),
        ([*[0.02] * 9, *[0.4] * 90], 0.392, 0.408),  # a change that lasts
    ],
)
def test_a_time_follows_lasting_changes_and_ignores_an_interruption(
    seconds: list[float], least: float, most: float
) -> None:
    time = Time()
    for value in seconds:
        time.add(value)
    assert least <= time.value <= most


# The cost curve


def measured(target_s: Mapping[int, float], other: CostModel | None = None, n_times: int = 1) -> CostModel:
    costs = CostModel(other, slower=1.5)
    for n, seconds in target_s.items():
        for _ in range(n_times):
            costs.add_target(n, seconds)
    return costs


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


@pytest.mark.parametrize("often", [1, 3])
def test_of_sizes_that_contradict_each_other_the_one_measured_more_often_counts_more(often: int) -> None:
    """A first decode is often disturbed."""
    costs = measured({often: 13.0}, n_times=3)
    costs.add_target(4 - often, 50.0 if often == 3 else 3.0)
    one, three = costs.target_s(1), costs.target_s(3)
    assert one <= three
    assert {1: one, 3: three}[often] == pytest.approx(13, rel=0.3)


TIMES = st.dictionaries(st.integers(1, 10), st.floats(0.001, 1.0), min_size=1, max_size=5)


@given(alone_s=TIMES, beside_s=TIMES | st.just({}), n_times=st.integers(1, 6))
def test_larger_batches_never_take_less_and_doubt_never_makes_them_faster(
    alone_s: dict[int, float], beside_s: dict[int, float], n_times: int
) -> None:
    alone = measured(alone_s, n_times=n_times)
    for costs in (alone, measured(beside_s, alone, n_times)):
        curves = [costs.curve(12, doubt) for doubt in (-1.0, 0.0, 1.0)]
        for curve in curves:
            assert all(low <= high * (1 + 1e-9) for low, high in pairwise(curve))
        for fast, slow in pairwise(curves):
            assert all(low <= high * (1 + 1e-9) for low, high in zip(fast, slow, strict=True))


def test_only_what_was_measured_in_this_condition_is_a_measured_time() -> None:
    alone = CostModel()
    beside = CostModel(alone)
    alone.add_target(1, 0.02)
    assert (alone.measured_s(1), alone.measured_s(2), beside.measured_s(1)) == (0.02, 0.0, 0.0)
    assert alone.target_s(2) > 0
    assert beside.target_s(1) > 0


def test_what_was_not_measured_is_inferred_from_the_other_condition() -> None:
    alone = CostModel()
    beside = CostModel(alone, slower=1.5)
    assert beside.target_s(2) == beside.draft_s == 0
    alone.add_target(1, 10.0)
    assert beside.target_s(1) == pytest.approx(15), "as much slower as usual"
    alone.add_target(4, 16.0)
    beside.add_target(1, 20.0)
    assert beside.target_s(4) == pytest.approx(32), "as much slower as where both were measured"
    beside.add_target(2, 30.0)
    assert alone.target_s(2) == pytest.approx(15)
    beside.add_target(4, 64.0)
    beside.add_target(4, 64.0)
    assert alone.target_s(2) == pytest.approx(30 / math.sqrt(8)), "the geometric mean of 2 and 4"
    assert alone.target_s(4) == 16, "what was measured here counts"


def test_the_drafts_time_is_inferred_too() -> None:
    alone = CostModel()
    beside = CostModel(alone, slower=1.5)
    alone.add_draft(2.0, 1)
    alone.add_draft(1.0, 2)
    assert (alone.draft_s, beside.draft_s) == (1.0, 1.5), "with the fastest number of threads"
    beside.add_draft(9.0)
    assert (alone.draft_s, beside.draft_s) == (1.0, 9.0)
    assert beside.draft_time(-1.0) < 9.0 < beside.draft_time(1.0)


def test_new_measurements_take_effect_at_once_in_both_conditions() -> None:
    alone = measured({1: 10.0})
    beside = measured({1: 20.0}, alone)
    for costs in (alone, beside):
        costs.curve(4)
    alone.add_target(4, 16.0)
    assert (alone.target_s(4), beside.target_s(4)) == pytest.approx((16, 32))
    alone.restore(measured({4: 20.0}).state())
    assert (alone.target_s(4), beside.target_s(4)) == pytest.approx((20, 40))


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


def test_another_run_begins_with_the_learned_costs() -> None:
    costs = measured({1: 10.0, 4: 16.0}, n_times=9)
    costs.add_draft(5.0, 2)
    restored = another_run(costs)
    assert restored.curve(6) == costs.curve(6)
    assert restored.draft_s == 5.0
    assert restored.knows_draft(2)


def test_only_plausible_costs_are_kept() -> None:
    """Less for a larger batch, or more than its tokens one by one: one of them was disturbed."""
    costs = measured({1: 10.0, 2: 12.0, 4: 6.0}, n_times=5)
    costs.add_target(8, 500.0)
    kept = {int(n): seconds for n, (seconds, _) in costs.state()["target_s"].items()}
    assert kept.keys() == {1, 2, 4}
    assert kept[1] <= kept[2] <= kept[4]
    costs.add_target(8, 500.0)
    assert "8" in costs.state()["target_s"], "it was not a disturbance"


@pytest.mark.parametrize(("now", "curve"), [(10.0, [10, 13, 16]), (35.0, [35, 52, 64]), (60.0, [40, 52, 64])])
def test_the_first_measurement_corrects_what_was_kept(now: float, curve: list[float]) -> None:
    """If it is much faster the machine was busy in the earlier run. If it is slower, it may be disturbed itself."""
    costs = measured({1: 40.0, 2: 52.0, 3: 64.0}, n_times=50)
    costs.add_draft(20.0)
    restored = another_run(costs)
    beside = CostModel(restored)
    beside.restore(measured({1: 60.0}).state())
    restored.add_target(1, now)
    assert restored.curve(3) == pytest.approx(curve)
    factor = 0.25 if now == 10 else 1.0
    assert (restored.draft_s, beside.target_s(1)) == (20 * factor, 60 * factor)
    restored.add_target(1, 2.0)
    assert restored.draft_s == 20 * factor, "later ones correct only their own size"


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
    assert doubts[-1] == pytest.approx(0.02 * math.sqrt(0.1 / 2), rel=0.3)
    restored = another_run(costs)
    assert restored.curve(1, 1.0)[0] / restored.target_s(1) - 1 == pytest.approx(0.02, rel=0.3), "one measurement"


def test_target_ms_reports_what_was_measured_in_this_run_and_condition() -> None:
    alone = measured({4: 0.016, 1: 0.010})
    assert alone.target_ms() == {"1": pytest.approx(10), "4": pytest.approx(16)}
    assert measured({1: 0.02}, alone).target_ms() == {"1": pytest.approx(20)}
    restored = another_run(alone)
    restored.add_target(4, 0.016)
    assert restored.target_ms() == {"4": pytest.approx(16)}


# Calibration


def learn(calibration: Calibration, acceptance: float, n: int, seed: int = 0) -> Calibration:
    dice = random.Random(seed)
    for _ in range(n):
        calibration.add(1.0, dice.random() < acceptance)
    return calibration


def test_calibration_learns_the_acceptance_of_each_confidence() -> None:
    calibration = Calibration()
    assert calibration.probability(DOUBTFUL) < calibration.mean < calibration.probability(SURE), "the prior"
    other = calibration.probability(SURE)
    for accepted, n in ((True, 100), (False, 200)):
        for _ in range(n):
            calibration.add(DOUBTFUL, accepted)
        assert abs(calibration.probability(DOUBTFUL) - accepted) < 0.1
        if accepted:
            assert calibration.probability(SURE) == other


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.0), (0.0, 0.85), (0.2, 0.8)])
def test_calibration_follows_a_change_of_the_text(before: float, after: float) -> None:
    """That of a confidence soon, the mean more slowly."""
    for n, least_here, least in ((60, 0.6, 0.4), (200, 0.9, 0.8)):
        calibrations = [learn(learn(Calibration(), before, 500, seed), after, n, seed + 100) for seed in range(10)]
        here, all_of_them = mean(c.probability(1.0) for c in calibrations), mean(c.mean for c in calibrations)
        assert (here - before) / (after - before) > least_here
        assert (all_of_them - before) / (after - before) > least


def test_calibration_does_not_follow_chance() -> None:
    """The mean of the last 200 candidates would be off by 0.028 (root mean square), that of the last 100 by 0.04."""
    squares = []
    for seed in range(4):
        calibration, dice = learn(Calibration(), 0.8, 200, seed), random.Random(seed)
        for _ in range(1000):
            calibration.add(1.0, dice.random() < 0.8)
            squares.append((calibration.mean - 0.8) ** 2)
    assert math.sqrt(mean(squares)) < 0.046


def test_doubt_about_the_acceptance_shrinks_but_not_below_what_a_text_may_differ() -> None:
    calibration, doubts = Calibration(), []
    for _ in range(4):
        doubts.append(calibration.sd)
        learn(calibration, 1.0, 15)
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[0] > 0.2, "the prior"
    assert learn(calibration, 1.0, 1000).sd == pytest.approx(math.sqrt(0.09 / 50)), "even if all were accepted"
    assert learn(Calibration(), 0.5, 1000).sd == pytest.approx(math.sqrt(0.25 / 50), rel=0.02)


def test_another_run_begins_with_the_learned_acceptance_as_that_of_16_candidates() -> None:
    calibration, restored = learn(Calibration(), 0.3, 500), Calibration()
    restored.restore(json.loads(json.dumps(calibration.state())))
    assert restored.probabilities() == pytest.approx(calibration.probabilities())
    assert restored.mean == calibration.mean
    assert restored.sd == pytest.approx(math.sqrt(restored.mean * (1 - restored.mean) / 16))
    assert learn(restored, 1.0, 16).mean == pytest.approx((1 + calibration.mean) / 2)


# Several sequences of the draft


def drafting(times: Mapping[int, float], other: CostModel | None = None) -> CostModel:
    costs = CostModel(other, slower=1.5)
    for n, seconds in times.items():
        for _ in range(5):
            costs.add_draft(seconds, n_sequences=n)
    return costs


def test_the_draft_s_time_for_several_sequences_is_learned_like_the_target_s_for_several_tokens() -> None:
    costs = drafting({1: 0.010, 3: 0.012, 9: 0.018})
    assert costs.draft_s == costs.draft_time(0.0, 1) == pytest.approx(0.010)
    assert costs.draft_curve(9) == pytest.approx([(10 + n) / 1000 for n in range(9)])
    assert costs.draft_time(1.0, 3) > costs.draft_time(0.0, 3)
    noisy = drafting({1: 0.010, 2: 0.006, 5: 0.011, 9: 0.0109})
    assert all(low <= high for low, high in pairwise(noisy.draft_curve(9))), "never less for more sequences"
    assert noisy.draft_s == pytest.approx(0.010), "not disturbed"


def test_the_draft_s_time_for_sequences_that_were_not_measured_is_assumed() -> None:
    costs = drafting({1: 0.010})
    assert [costs.draft_time(0.0, n) for n in (2, 5)] == pytest.approx([0.013, 0.016])
    assert costs.draft_curve(9) == [], "nothing is known"
    assert drafting({2: 0.010}).draft_time(0.0, 2) == 0, "nor without the time for one"


def test_the_draft_s_time_for_sequences_is_inferred_from_the_other_condition() -> None:
    alone = drafting({1: 0.010, 9: 0.026})
    beside = CostModel(alone, slower=1.5)
    assert beside.draft_curve(9) == pytest.approx([1.5 * (10 + 2 * n) / 1000 for n in range(9)])
    beside.add_draft(0.040, n_sequences=9)
    assert beside.draft_time(0.0, 9) == pytest.approx(0.040)
    assert alone.draft_time(0.0, 9) == pytest.approx(0.026)


def test_which_sequences_are_known() -> None:
    costs = drafting({1: 0.010, 5: 0.011})
    assert [costs.knows_draft(1, n) for n in (1, 2, 5)] == [True, False, True]
    assert not costs.knows_draft(2, 1)


def test_sequences_and_ranks_are_kept_and_missing_in_profiles_of_earlier_versions() -> None:
    costs, calibration = drafting({1: 0.010, 5: 0.012}), learn(Calibration(), 0.5, 9)
    for rank in (0, 0, 0, 2, -1):
        calibration.add_rank(rank)
    kept, kept_ranks = CostModel(), Calibration()
    kept.restore(json.loads(json.dumps(costs.state())))
    kept_ranks.restore(json.loads(json.dumps(calibration.state())))
    assert kept.draft_curve(5) == pytest.approx(costs.draft_curve(5))
    assert kept_ranks.ranks == pytest.approx(calibration.ranks)
    for made in (costs, calibration):
        state = {name: value for name, value in made.state().items() if name not in ("branch_s", "ranks")}
        restored = type(made)()
        restored.restore(state)
    assert isinstance(restored, Calibration)
    assert restored.ranks == Calibration().ranks
    assert restored.mean == calibration.mean


def test_ranks_follow_what_the_target_chose_instead() -> None:
    calibration = Calibration()
    assert calibration.ranks == DEFAULT.ranks
    for i in range(400):
        calibration.add_rank((1, 1, 2, -1)[i % 4])
    assert calibration.ranks == pytest.approx((0, 0.5, 0.25), abs=0.03)


NO_TIMES = [[0.0, 0], [-1.0, 0], [math.inf, 0], [math.nan, 0], [None, 0], 0.1, [0.1, -1], [0.1, 1.5], [0.1, True]]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *((CostModel, {"target_s": {"1": value}}) for value in NO_TIMES),
        (CostModel, {"target_s": {"one": [0.1, 0]}}),
        (CostModel, {"target_s": {"0": [0.1, 0]}}),
        (CostModel, {"draft_s": {"1": ["fast", 0]}}),
        (CostModel, {"branch_s": {"2": ["fast", 0]}}),
        *((CostModel, {name: DELETE}) for name in ("draft_s", "target_s")),
        *((Calibration, {"ranks": value}) for value in ([2.0, 0, 0], ["often"], 7)),
        *((Calibration, {"mean": value}) for value in (1.5, "often", math.nan, DELETE)),
        *((Calibration, {"accepted": value}) for value in ([0.5], [-0.1] * 9, None)),
        (Calibration, {"edges": [1.0]}),
    ],
)
def test_a_damaged_state_is_refused(kind: type[CostModel] | type[Calibration], damage: dict[str, object]) -> None:
    made = kind()
    if isinstance(made, CostModel):
        made.add_target(1, 0.010)
    state = {name: value for name, value in {**made.state(), **damage}.items() if value is not DELETE}
    with pytest.raises((KeyError, TypeError, ValueError)):
        kind().restore(state)


def test_reliable_times_are_of_five_measurements_in_this_run_or_of_earlier_runs() -> None:
    costs = CostModel()
    for n in range(1, 6):
        assert costs.reliable_ms(1) == {"this_run": None, "earlier_runs": None}, n
        costs.add_target(1, 0.1)
    assert costs.reliable_ms(1) == {"this_run": pytest.approx(100), "earlier_runs": None}
    later = CostModel()
    later.restore(costs.state())
    for _ in range(4):
        later.add_target(1, 0.1)
        assert later.reliable_ms(1) == {"this_run": None, "earlier_runs": pytest.approx(100)}
    later.add_target(1, 0.1)
    assert later.reliable_ms(1)["this_run"] == pytest.approx(100, rel=0.05)


# What is computed from T(n)


def test_a_larger_batch_is_affordable_if_the_credit_covers_a_linear_cost() -> None:
    costs = CostModel()
    assert costs.n_affordable(1.0) == 1, "nothing is known"
    costs.add_target(1, 0.1)
    assert [costs.n_affordable(credit_s) for credit_s in (-1.0, 0.0, 0.25, 0.35)] == [1, 1, 3, 4]
    costs.add_target(4, 0.2)
    assert [costs.n_affordable(credit_s) for credit_s in (-1.0, 0.26)] == [4, 7]
    assert CostModel(costs).n_affordable(-1.0) == 4, "measured in the other condition"


def test_small_changes_of_a_time_add_up() -> None:
    """The curve is not computed again for each of them, but is never further off than that."""
    costs = CostModel()
    for i in range(400):
        seconds = 0.1 * 1.001**i
        costs.add_target(1, seconds)
        assert costs.target_s(1) == pytest.approx(costs._target[1].value, rel=0.006)

"""What a policy decides."""

import itertools
import math

import pytest
from duo.speculation.policy import REJECTION, Decision, Policy, StepCost
from hypothesis import given
from hypothesis import strategies as st

from duo.speculation.constants import DEFAULT
from duo.speculation.modes import ALL, ASYNC, OFF, SYNC, Schedule
from duo.speculation.types import Origin
from tests.unit.speculation.machines import N_AHEAD
from tests.unit.speculation.policies import CLIFF, FLAT, SLOW_TARGET, STEEP, decide, policy, scores

SURE, DOUBTFUL = 9.0, 0.0
BOTH = pytest.mark.parametrize("schedule", [ASYNC, SYNC])


@pytest.mark.parametrize("schedule", ALL)
def test_before_anything_is_measured_the_target_decodes_alone(schedule: Schedule) -> None:
    made = Policy(4, N_AHEAD, (schedule,))
    assert made.rate == 0
    assert decide(made, [SURE] * 9, 0.1) == decide(made, [], 0.001) == Decision(0)


@BOTH
@pytest.mark.parametrize("target_s", [SLOW_TARGET, FLAT, STEEP, CLIFF], ids=["slow", "flat", "steep", "cliff"])
def test_better_candidates_are_never_verified_less(target_s: dict[int, float], schedule: Schedule) -> None:
    found = [
        decide(policy(target_s, 0.002, share / 10, schedules=(schedule,)), [1.0] * 8).n_verify for share in range(11)
    ]
    assert found == sorted(found)
    assert found[0] == (schedule is SYNC), "if it was asked for, it drafts even where that does not pay"
    assert found[-1] >= 4 or target_s is STEEP


@pytest.mark.parametrize("schedule", ALL)
@given(
    confidences=st.lists(st.floats(0, 20), max_size=N_AHEAD),
    n_room=st.integers(1, 20),
    next_s=st.floats(0, 1) | st.just(math.inf),
    n_max=st.integers(0, 8),
    acceptance=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_decisions_are_within_what_is_ready_allowed_and_fits(
    schedule: Schedule, confidences: list[float], n_room: int, next_s: float, n_max: int, acceptance: float
) -> None:
    made = policy(CLIFF, 0.002, acceptance, n_max, (schedule,))
    decision = decide(made, confidences, next_s, n_room=n_room)
    bound = min(n_max, n_room - 1)
    assert 0 <= decision.n_verify <= min(len(confidences), bound)
    if decision.wait_s is not None:
        assert len(confidences) < bound
        assert next_s < decision.wait_s <= next_s + made.costs.draft_s < math.inf
    if made.schedule is OFF or bound <= 0:
        assert decision == Decision(0)
    assert n_max or made.schedule is OFF


def test_a_fast_draft_is_waited_for_until_there_are_enough_candidates_or_the_next_one_is_late() -> None:
    def waits(draft_s: float, next_s: float) -> list[bool]:
        made = policy(SLOW_TARGET, draft_s, acceptance=0.8)
        return [decide(made, [1.0] * n, next_s).wait_s is not None for n in range(9)]

    found = waits(0.1, 0.1)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[8]) == (True, False)
    assert sum(waits(0.15, 0.01)) > sum(waits(0.15, 0.15))
    assert not any((*waits(0.8, 0.8), *waits(0.1, math.inf)))


@pytest.mark.parametrize(("acceptance", "n_decodes"), [(0.5, (20, 50)), (0.9, (3, 8))])
def test_in_turns_one_token_is_measured_again_the_more_often_the_less_is_gained(
    acceptance: float, n_decodes: tuple[int, int]
) -> None:
    """A text of 1000 tokens, of which that may cost 2.5."""
    made = policy({1: 0.1, 2: 0.1, 4: 0.13}, 0.03, acceptance, schedules=(SYNC, OFF))
    made.chooser.now = SYNC
    made.learn_step(1, StepCost(2, 0.11, 0.17))
    found = 0
    for _ in range(500):
        measures = decide(made, [SURE]) == Decision(0)
        found += measures
        made.learn_step(1 if measures else 2, StepCost(0, 0.1, 0.1) if measures else StepCost(1, 0.1, 0.13))
        made.chooser.now = SYNC
    assert n_decodes[0] <= found <= n_decodes[1]


# Rejection sampling: from left to right


def doubtful_or_sure(mode: str) -> Policy:
    """Candidates of confidence 0.1, 1 and 10 are right in 5, 60 and 95 % of cases."""
    made = policy(CLIFF, 0.002, 0.6, mode=mode)
    made.learn_scores([*scores(0.05, 200, 0.1), *scores(0.95, 200, 10.0)])
    return made


IN_ORDER, COUPLED = doubtful_or_sure(REJECTION), doubtful_or_sure("coupled")
ASSORTED = st.lists(st.sampled_from([0.1, 1.0, 10.0]), max_size=6)


@given(before=ASSORTED, first=ASSORTED, second=ASSORTED)
def test_in_order_later_candidates_do_not_influence_the_decision_on_earlier_ones(
    before: list[float], first: list[float], second: list[float]
) -> None:
    taken = [min(decide(IN_ORDER, before + after).n_verify, len(before)) for after in (first, second)]
    assert taken[0] == taken[1]


def test_in_order_each_candidate_must_be_worth_it_and_coupled_ones_are_judged_together() -> None:
    """Two cost as much as five: a doubtful candidate is verified if those after it are good, and not by itself."""
    assert decide(IN_ORDER, [10.0, 10.0, 10.0, 10.0, 0.1, 10.0]).n_verify == 4
    assert decide(IN_ORDER, [0.1, 10.0, 10.0]).n_verify == 0
    assert decide(IN_ORDER, [10.0], 0.0005).wait_s is not None
    assert decide(COUPLED, [1.0]).n_verify == 0
    assert decide(COUPLED, [1.0, 10.0, 10.0, 10.0]).n_verify == 4


@pytest.mark.parametrize("acceptance", [0.05, 0.5, 0.9])
def test_the_draft_continues_while_its_candidates_are_likely_to_survive(acceptance: float) -> None:
    made = policy(FLAT, 0.005, acceptance)
    made.learn_scores([*scores(0.1, 200, 0.1), *scores(0.95, 200, 10.0)])
    least = min(DEFAULT.least_survival, made.rate * made.costs.draft_s)
    found = set()
    for confidences in itertools.product([0.1, 1.0, 10.0], repeat=4):
        survival = math.prod(map(made.lookahead().probability, confidences))
        assert made.lookahead().allows(confidences) == (survival >= least)
        found.add(survival >= least)
    assert found == {True, False}
    assert made.lookahead().allows([10.0] * (N_AHEAD - 1))
    assert not made.lookahead().allows([10.0] * N_AHEAD), "the limit"


# Candidates from the text itself


def found(*chances: float, low: float = 0.0) -> list[tuple[float, float]]:
    """Candidates of these chances; one standard deviation less is `low`."""
    return [(chance, chance * (1 - chance) / (chance - low) ** 2 if low else 1e9) for chance in chances]


@pytest.mark.parametrize(
    ("target_s", "chances", "n"),
    [(FLAT, 8 * [0.95], 8), (FLAT, [0.9, 0.9, 0.1, 0.9], 2), (FLAT, [0.1], 0), (STEEP, 8 * [0.95], 0), (FLAT, [], 0)],
)
def test_what_the_lookup_found_is_verified_where_it_pays(
    target_s: dict[int, float], chances: list[float], n: int
) -> None:
    made = policy(target_s, schedules=(OFF,))
    assert decide(made, found=found(*chances)) == Decision(n, origin=Origin.LOOKUP if n else Origin.DRAFT)
    assert decide(made, found=found(*chances), n_room=3).n_verify == min(n, 2)


def test_more_candidates_may_come_from_the_text_than_from_the_draft() -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(SYNC,))
    made.alone.add_target(17, 0.030)
    assert decide(made, found=found(*[0.99] * 20)).n_verify == 8
    made.n_most = 16
    assert decide(made, found=found(*[0.99] * 20)) == Decision(16, origin=Origin.LOOKUP)
    assert decide(made, found=found(*[0.99] * 20), n_room=12).n_verify == 11
    assert decide(made, [SURE] * 16).n_verify == 8


@BOTH
def test_the_source_of_the_greater_value_is_verified(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(schedule,))
    assert decide(made, [SURE] * 8, found=found(0.5, 0.5)).origin is Origin.DRAFT
    assert decide(made, [DOUBTFUL] * 2, found=found(*[0.97] * 8)) == Decision(8, origin=Origin.LOOKUP)
    assert decide(made, [], 0.002, found(*[0.99] * 8)).origin is Origin.LOOKUP, "instead of a wait for the draft"
    assert decide(made, [], 0.002, found(0.05)) == decide(made, [], 0.002)


@BOTH
def test_what_both_sources_predict_is_more_likely(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.6, schedules=(schedule,))
    assert decide(made, [DOUBTFUL], found=found(0.5, 0.9, 0.9, 0.9, 0.9)) == Decision(5, origin=Origin.LOOKUP)
    assert decide(made, [DOUBTFUL] * 2).n_verify < 2
    assert decide(made, [DOUBTFUL] * 2, found=found(0.9, 0.9)) == Decision(2), "they are the draft's"


def test_in_turns_the_draft_is_asked_first_where_the_lookup_is_unsure() -> None:
    """Its time is less than what the target loses with candidates of which the first is usually wrong."""
    made = policy({1: 0.01, 2: 0.014, 8: 0.02}, 0.001, 0.8, schedules=(SYNC,))
    assert decide(made, [], 0.001, found(0.6, *[0.9] * 6)).wait_s is not None
    assert decide(made, [], 0.001, found(0.99, *[0.9] * 6)).origin is Origin.LOOKUP
    assert decide(made, [], math.inf, found(0.6, *[0.9] * 6)).origin is Origin.LOOKUP, "it will not answer"


@BOTH
def test_with_rejection_sampling_the_choice_does_not_depend_on_what_was_drawn(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.6, schedules=(schedule,), mode=REJECTION)
    for chances in ([0.9] * 8, [0.6] * 4, [0.3]):
        sources = {
            decide(made, [sure] * n, next_s, found(*chances)).origin
            for sure in (SURE, 1.0, DOUBTFUL)
            for n in range(8)  # how many there are depends on what was drawn before
            for next_s in (0.001, math.inf)  # and so does whether the draft has paused
        }
        assert len(sources) == 1


def test_a_text_that_misleads_uses_up_its_credit_and_then_only_what_is_beyond_doubt_is_verified() -> None:
    made = policy(FLAT, schedules=(OFF,))
    lookup, n = found(*[0.9] * 8, low=0.1), 0
    while (decision := decide(made, found=lookup)).n_verify:
        cost = made.costs.target_s(decision.n_verify + 1)
        made.learn_step(1, StepCost(decision.n_verify, cost, cost, Origin.LOOKUP))
        n += 1
        assert n < 20
    assert decide(made, found=found(*[0.9] * 8, low=0.8)).n_verify >= 4
    for _ in range(2000):  # a share of the time is credit
        made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert decide(made, found=lookup).n_verify == 8


def test_what_the_lookup_gains_or_loses_is_not_the_drafts() -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF))
    made.chooser.now = SYNC
    credit_s, rates = made.chooser.budget.credit_s, made.rates()
    for _ in range(100):
        made.learn_step(9, StepCost(8, FLAT[9], FLAT[9], Origin.LOOKUP))
    assert made.chooser.budget.credit_s == pytest.approx(credit_s, abs=0.02), "but a share of the time"
    assert made.rates() == pytest.approx(rates), "a forecast is not compared with it"


def test_a_draft_that_is_asked_before_the_lookups_candidates_are_verified_pays_for_that() -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF))
    made.chooser.now = SYNC
    credit_s = made.chooser.budget.credit_s
    made.learn_step(9, StepCost(8, FLAT[9], FLAT[9] + 0.004, Origin.LOOKUP))
    assert made.chooser.budget.credit_s == pytest.approx(credit_s - 0.004, abs=0.001)


def test_a_profile_is_kept_after_a_text_that_the_lookup_found_almost_whole() -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF))
    for _ in range(30):
        made.learn_step(9, StepCost(8, FLAT[9], FLAT[9], Origin.LOOKUP))
    made.learn_step(1, StepCost(0, FLAT[1], FLAT[1]))
    assert policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF)).restore_kept(made.state())


def test_in_turns_the_draft_has_to_read_what_the_lookup_finds() -> None:
    """A forecast counts it, also in the next run; and so does the time until the next candidate."""
    made = policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF))
    made.learn_draft(20, 20 * 0.001)
    made.chooser.now, rates, draft_s = SYNC, made.rates(), made.next_draft_s
    for _ in range(200):
        made.learn_step(9, StepCost(8, FLAT[9], FLAT[9], Origin.LOOKUP))
        made.learn_step(1, StepCost(0, FLAT[1], FLAT[1]))
    assert made.rates()[SYNC] == pytest.approx(1 / (1 / rates[SYNC] + 8 * 0.001 / 4), rel=0.2)
    assert made.rates()[OFF] == pytest.approx(rates[OFF])
    assert made.next_draft_s == pytest.approx(draft_s + 200 * 8 * 0.001)
    made.learn_draft(1, 0.002)
    assert made.next_draft_s == pytest.approx(0.002, rel=0.1)
    restored = policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF))
    assert restored.restore_kept(made.state())
    assert restored.rates()[SYNC] == pytest.approx(made.rates()[SYNC], rel=0.05)

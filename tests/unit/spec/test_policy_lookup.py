"""What a policy decides about candidates from the text itself."""

from __future__ import annotations

import math

import pytest

from duo.spec.policy import REJECTION, Decision, Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Origin
from tests.unit.spec.policies import FLAT, STEEP, decide, policy, scores

SURE, DOUBTFUL = 9.0, 0.0
ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


def found(*chances: float, low: float = 0.0) -> list[tuple[float, float]]:
    """Candidates of these chances; one standard deviation less is `low`."""
    return [(chance, chance * (1 - chance) / (chance - low) ** 2 if low else 1e9) for chance in chances]


def alone(target_s: dict[int, float], n_max: int = 8) -> Policy:
    return policy(target_s, n_max=n_max, schedules=(OFF,))


def test_candidates_that_pay_are_verified_without_a_draft() -> None:
    assert decide(alone(FLAT), (), 100, math.inf, found(*[0.95] * 8)) == Decision(8, origin=Origin.LOOKUP)
    assert decide(alone(FLAT), (), 100, math.inf, found(0.9, 0.9, 0.1, 0.9)).n_verify == 2
    assert decide(alone(FLAT), (), 100, math.inf, found(0.1)) == Decision(0)
    assert decide(alone(STEEP), (), 100, math.inf, found(*[0.95] * 8)) == Decision(0)
    assert decide(alone(FLAT), (), 100, math.inf, found()) == Decision(0)


@pytest.mark.parametrize("n_room", [1, 2, 5])
def test_there_are_never_more_than_the_step_may_add(n_room: int) -> None:
    assert decide(alone(FLAT), (), n_room, math.inf, found(*[0.99] * 8)).n_verify == n_room - 1
    assert decide(alone(FLAT, n_max=3), (), 100, math.inf, found(*[0.99] * 8)).n_verify == 3


def test_before_anything_is_measured_nothing_is_verified() -> None:
    assert decide(Policy(8, 16, (OFF,)), (), 100, math.inf, found(*[0.99] * 8)) == Decision(0)


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_the_source_of_the_greater_value_is_verified(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(schedule,))
    assert decide(made, [SURE] * 8, 100, math.inf, found(0.5, 0.5)).origin is Origin.DRAFT
    assert decide(made, [DOUBTFUL] * 2, 100, math.inf, found(*[0.97] * 8)) == Decision(8, origin=Origin.LOOKUP)
    assert decide(made, [], 100, 0.002, found(*[0.99] * 8)).origin is Origin.LOOKUP, "instead of a wait for the draft"
    assert decide(made, [], 100, 0.002, found(0.05)) == decide(made, [], 100, 0.002)


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_what_both_sources_predict_is_more_likely(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.6, schedules=(schedule,))
    assert decide(made, [DOUBTFUL], 100, math.inf, found(0.5, 0.9, 0.9, 0.9, 0.9)) == Decision(5, origin=Origin.LOOKUP)
    alone, both = (decide(made, [DOUBTFUL] * 2, 100, math.inf, each) for each in (None, found(0.9, 0.9)))
    assert alone.n_verify < 2
    assert both == Decision(2), "they are the draft's"


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_of_two_tokens_the_likelier_one_is_verified(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.6, schedules=(schedule,))
    made.learn_scores([*scores(0.95, 100, SURE), *scores(0.1, 100, DOUBTFUL)])
    lookup = found(*[0.9] * 8)
    for sure, source in ((SURE, Origin.DRAFT), (DOUBTFUL, Origin.LOOKUP)):
        assert decide(made, [sure] * 2, 100, math.inf, lookup, 0).origin is source
    assert decide(made, [SURE] * 2, 100, math.inf, lookup, 1).origin is Origin.DRAFT


def test_in_turns_the_draft_is_asked_first_where_the_lookup_is_unsure() -> None:
    """Its time is less than what the target loses with candidates of which the first is usually wrong."""
    made = policy({1: 0.01, 2: 0.014, 8: 0.02}, 0.001, 0.8, schedules=(SYNC,))
    assert decide(made, [], 100, 0.001, found(0.6, *[0.9] * 6)).wait_s is not None
    assert decide(made, [], 100, 0.001, found(0.99, *[0.9] * 6)).origin is Origin.LOOKUP
    assert decide(made, [], 100, math.inf, found(0.6, *[0.9] * 6)).origin is Origin.LOOKUP, "it will not answer"


def test_a_draft_that_would_not_be_asked_does_not_delay_the_lookup() -> None:
    """Where the lookup has made time valuable, it does not pay to draft."""
    made = policy({1: 0.01, 2: 0.014, 8: 0.02}, 0.009, 0.8, schedules=(SYNC, OFF))
    made.chooser.now = SYNC
    made.learn_step(9, StepCost(7, 0.02, 0.02, Origin.LOOKUP))
    assert decide(made, [], 100, 0.009) == Decision(0)
    assert decide(made, [], 100, 0.009, found(0.8, *[0.95] * 6)).origin is Origin.LOOKUP


def test_what_the_lookup_costs_is_compared_with_drafting() -> None:
    """Its steps gain over the target alone, but less than the draft does: beyond the credit only what is sure."""
    made = policy(FLAT, 0.001, 0.9, schedules=(SYNC,))
    lookup = found(*[0.9] * 8, low=0.1)
    assert decide(made, [], 100, math.inf, lookup).origin is Origin.LOOKUP
    for _ in range(20):
        made.learn_step(4, StepCost(8, FLAT[9], FLAT[9], Origin.LOOKUP))
    assert decide(made, [], 100, math.inf, lookup).origin is Origin.DRAFT


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_with_rejection_sampling_the_choice_does_not_depend_on_what_was_drawn(schedule: Schedule) -> None:
    made = policy(FLAT, 0.002, 0.6, schedules=(schedule,), mode=REJECTION)
    for chances in ([0.9] * 8, [0.6] * 4, [0.3]):
        sources = {
            decide(made, [sure] * n, 100, next_s, found(*chances)).origin
            for sure in (SURE, 1.0, DOUBTFUL)
            for n in range(8)  # how many there are depends on what was drawn before
            for next_s in (0.001, math.inf)  # and so does whether the draft has paused
        }
        assert len(sources) == 1


@pytest.mark.parametrize("next_s", [0.001, math.inf])
def test_a_step_without_candidates_is_not_the_lookups(next_s: float) -> None:
    made = policy(FLAT, 0.008, 0.6)
    for n in range(4):
        assert decide(made, [DOUBTFUL] * n, 100, next_s, found(0.05)).origin is Origin.DRAFT


def test_a_text_that_misleads_uses_up_its_credit_and_then_only_what_is_beyond_doubt_is_verified() -> None:
    made = alone(FLAT)
    lookup, n = found(*[0.9] * 8, low=0.1), 0
    while (decision := decide(made, (), 100, math.inf, lookup)).n_verify:
        cost = made.costs.target_s(decision.n_verify + 1)
        made.learn_step(1, StepCost(decision.n_verify, cost, cost, Origin.LOOKUP))
        n += 1
        assert n < 20
    assert decide(made, (), 100, math.inf, found(*[0.9] * 8, low=0.8)).n_verify >= 4
    for _ in range(2000):  # a share of the time is credit
        made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert decide(made, (), 100, math.inf, lookup).n_verify == 8


def test_what_the_lookup_gains_or_loses_is_not_the_drafts() -> None:
    made = policy(FLAT, 0.002, 0.8, schedules=(SYNC, OFF))
    made.chooser.now = SYNC
    credit_s, rates = made.chooser.budget.credit_s, made.rates()
    for _ in range(100):
        made.learn_step(9, StepCost(8, FLAT[9], FLAT[9], Origin.LOOKUP))
    assert made.chooser.budget.credit_s == pytest.approx(credit_s, abs=0.02), "but a share of the time"
    assert made.rates() == pytest.approx(rates), "a forecast is not compared with it"


def test_its_decodes_are_measurements_like_all_others() -> None:
    made = alone({1: 0.010})
    made.learn_step(3, StepCost(4, 0.033, 0.034, Origin.LOOKUP))
    assert made.costs.target_s(5) == 0.033


def test_time_is_worth_what_the_lookup_makes_of_it() -> None:
    """Where it finds much, drafting through what it would find next does not pay."""
    made = policy(FLAT, 0.004, 0.9, schedules=(SYNC,))
    before = decide(made, [], 100, 0.004)
    assert before.wait_s is not None
    for _ in range(50):
        made.learn_step(9, StepCost(8, FLAT[9], FLAT[9], Origin.LOOKUP))
    assert decide(made, [], 100, 0.004).wait_s is None
    made.begin(10)
    assert decide(made, [], 100, 0.004) == before, "in the next text it may find nothing"


@pytest.mark.parametrize("n_found", [0, 8])
def test_a_draft_is_not_prepared_for_the_tokens_that_the_lookup_finds(n_found: int) -> None:
    made = policy({1: 0.1, 2: 0.11, 4: 0.12, 9: 0.13}, 0.002, 0.9, schedules=(SYNC, OFF))
    made.learn_draft(100, 0.2)  # 2 ms per token
    made.begin(20_000, 300)
    assert made.schedule is OFF
    made._exploration.n_unread = 8000  # of the prompt: 16 s
    for _ in range(4):
        source = Origin.LOOKUP if n_found else Origin.DRAFT
        made.learn_scores([(1.0, True)])
        made.learn_step(1 + n_found, StepCost(n_found, 0.1, 0.1, source))
    assert made.schedule is (OFF if n_found else SYNC)

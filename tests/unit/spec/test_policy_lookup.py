"""What a policy decides about candidates from the text itself."""

from __future__ import annotations

import math

import pytest

from duo.spec.policy import REJECTION, Decision, Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Origin
from tests.unit.spec.policies import FLAT, STEEP, decide, policy

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


def test_in_turns_the_draft_is_asked_first_where_the_lookup_is_unsure() -> None:
    """Its time is less than what the target loses with candidates of which the first is usually wrong."""
    made = policy({1: 0.01, 2: 0.014, 8: 0.02}, 0.001, 0.8, schedules=(SYNC,))
    assert decide(made, [], 100, 0.001, found(0.6, *[0.9] * 6)).wait_s is not None
    assert decide(made, [], 100, 0.001, found(0.99, *[0.9] * 6)).origin is Origin.LOOKUP
    assert decide(made, [], 100, math.inf, found(0.6, *[0.9] * 6)).origin is Origin.LOOKUP, "it will not answer"


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

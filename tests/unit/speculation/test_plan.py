"""What a controller plans with what its proposers have."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.speculation.constants import DEFAULT
from duo.speculation.controller import REJECTION
from duo.speculation.decision import best_batch, best_drafted, with_alternatives
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.forecast import Forecast
from duo.speculation.modes import ALL, ALONE, ASYNC, OFF, SYNC, Schedule, TargetAlone
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import Candidate, Origin, Plan, Proposal
from tests.unit.speculation.pairs import (
    CLIFF,
    FLAT,
    N_AHEAD,
    SLOW_TARGET,
    STEEP,
    SYNC_MODE,
    Pair,
    knowing,
    pair,
    scores,
    text,
)

SURE, DOUBTFUL = 9.0, 0.0
BOTH = pytest.mark.parametrize("schedule", [ASYNC, SYNC])


def n_verified(plan: Plan) -> int:
    assert plan.wait_s is None
    return len(plan.candidates)


def verified(plan: Plan) -> tuple[int, Origin]:
    return n_verified(plan), plan.origin


@pytest.mark.parametrize("schedule", ALL)
def test_before_anything_is_measured_the_target_decodes_alone(schedule: Schedule) -> None:
    made = pair(4, (schedule,))
    made.begin()
    assert made.controller.rate == 0
    assert made.plan([SURE] * 9, 0.1) == made.plan([], 0.001) == Plan()


def test_where_nothing_proposes_the_target_decodes_alone() -> None:
    alone = TargetAlone()
    alone.begin([], 9, 5, "greedy")
    assert (alone.plan([text()], []), alone.mode) == (Plan(), ALONE)


@BOTH
@pytest.mark.parametrize("target_s", [SLOW_TARGET, FLAT, STEEP, CLIFF], ids=["slow", "flat", "steep", "cliff"])
def test_better_candidates_are_never_verified_less(target_s: dict[int, float], schedule: Schedule) -> None:
    found = [n_verified(knowing(target_s, 0.002, share / 10, (schedule,)).plan([1.0] * 8)) for share in range(11)]
    assert found == sorted(found)
    assert found[0] == (schedule is SYNC), "if it was asked for, it drafts even where that does not pay"
    assert found[-1] >= 4 or target_s is STEEP


@pytest.mark.parametrize("schedule", ALL)
@given(
    confidences=st.lists(st.floats(0, 20), max_size=N_AHEAD),
    n_room=st.integers(1, 20),
    next_s=st.floats(0, 1) | st.just(math.inf),
    n_max=st.integers(1, 8),
    acceptance=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_plans_are_within_what_is_ready_allowed_and_fits(
    schedule: Schedule, confidences: list[float], n_room: int, next_s: float, n_max: int, acceptance: float
) -> None:
    made = knowing(CLIFF, 0.002, acceptance, (schedule,), n_max=n_max)
    plan = made.plan(confidences, next_s, n_room=n_room)
    bound = min(n_max, n_room - 1)
    assert len(plan.candidates) <= min(len(confidences), bound)
    if plan.wait_s is not None:
        assert (len(confidences) < bound, plan.proposer, plan.candidates) == (True, 0, ())
        assert next_s < plan.wait_s < math.inf
    if schedule is OFF or bound <= 0:
        assert plan == Plan()


@pytest.mark.parametrize(
    ("last_s", "n_room", "found"),
    [
        (0.0105, 20, [(0, 100), (1, 101), (2, 102), (3, 103)]),  # nearly nothing is added by a row
        (0.0105, 7, [(0, 100), (1, 101)]),  # of which the last but one is for the last candidate
        (0.024, 20, [(0, 100), (1, 101)]),
        (0.03, 20, [(0, 100)]),
        (0.1, 20, []),
    ],
)
def test_alternatives_are_taken_while_they_are_worth_their_rows(
    last_s: float, n_room: int, found: list[tuple[int, int]]
) -> None:
    """After four candidates, rows up to the 20th take `last_s` in all; each has one alternative, right in 0.55."""
    made = knowing({1: 0.01, 5: 0.0104, 20: last_s}, acceptance=0.7, schedules=(SYNC,))
    candidates = [Candidate(i, 1.0, alternatives=(100 + i,)) for i in range(4)]
    plan = Plan(candidates, 0)
    n_most = min(8, n_room - 1 - len(candidates))
    rate = 1.2 / 0.01
    taken = with_alternatives(plan, made.draft, made.controller.costs, rate, n_most)
    assert list(taken.alternatives) == found
    assert taken._replace(alternatives=()) == plan


def test_with_rejection_sampling_or_another_proposers_candidates_there_are_no_alternatives() -> None:
    def planned(mode: str, n: int = 8) -> Plan:
        made = knowing({1: 0.49, 30: 0.4901}, 0.005, 0.7, (SYNC,), mode)
        made.controller.n_alternatives = n
        drafted = [Candidate(i, 1.0, alternatives=(100 + i,)) for i in range(8)]
        found = Proposal([Candidate(50 + i, 0.0) for i in range(8)], origin=Origin.LOOKUP, chances=[(0.99, 99.0)] * 8)
        proposals = [Proposal(drafted, draft=made.draft.name), *([found] if mode == "lookup" else [])]
        return made.controller.plan([text()], proposals)

    assert len(planned("greedy").alternatives) == 8
    assert not planned("greedy", 0).alternatives
    assert len(planned("greedy", 3).alternatives) == 3
    for mode in (REJECTION, "lookup"):
        plan = planned(mode)
        assert (bool(plan.candidates), list(plan.alternatives)) == (True, [])


def test_a_fast_draft_is_waited_for_until_there_are_enough_candidates_or_the_next_one_is_late() -> None:
    def waits(draft_s: float, next_s: float) -> list[bool]:
        made = knowing(SLOW_TARGET, draft_s, acceptance=0.8)
        return [made.plan([1.0] * n, next_s).wait_s is not None for n in range(9)]

    found = waits(0.1, 0.1)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[8]) == (True, False)
    assert sum(waits(0.15, 0.01)) > sum(waits(0.15, 0.15))
    assert not any((*waits(0.8, 0.8), *waits(0.1, math.inf)))


@pytest.mark.parametrize(("acceptance", "n_decodes"), [(0.5, (15, 50)), (0.9, (2, 8))])
def test_in_turns_one_token_is_measured_again_the_more_often_the_less_is_gained(
    acceptance: float, n_decodes: tuple[int, int]
) -> None:
    """A text of 1000 tokens, of which that may cost 2.5."""
    made = knowing({1: 0.1, 2: 0.1, 4: 0.13}, 0.03, acceptance, (SYNC, OFF))
    made.use(SYNC_MODE)
    made.step(1, 2, 0.11, 0.17)
    found = 0
    for _ in range(500):
        if measures := made.plan([SURE]) == Plan():
            made.step(1, 0, 0.1)
        else:
            made.step(2, 1, 0.1, 0.13)
        found += measures
        made.use(SYNC_MODE)
    assert n_decodes[0] <= found <= n_decodes[1]


# Rejection sampling: from left to right


def doubtful_or_sure(mode: str) -> Pair:
    """Candidates of confidence 0.1, 1 and 10 are right in 5, 60 and 95 % of cases."""
    made = knowing(CLIFF, 0.002, 0.6, mode=mode)
    made.draft.learn_scores([*scores(0.05, 200, 0.1), *scores(0.95, 200, 10.0)])
    return made


IN_ORDER, COUPLED = doubtful_or_sure(REJECTION), doubtful_or_sure("coupled")
ASSORTED = st.lists(st.sampled_from([0.1, 1.0, 10.0]), max_size=6)


@given(before=ASSORTED, first=ASSORTED, second=ASSORTED)
def test_in_order_later_candidates_do_not_influence_the_decision_on_earlier_ones(
    before: list[float], first: list[float], second: list[float]
) -> None:
    taken = [min(n_verified(IN_ORDER.plan(before + after)), len(before)) for after in (first, second)]
    assert taken[0] == taken[1]


def test_in_order_each_candidate_must_be_worth_it_and_coupled_ones_are_judged_together() -> None:
    """Two cost as much as five: a doubtful candidate is verified if those after it are good, and not by itself."""
    assert n_verified(IN_ORDER.plan([10.0, 10.0, 10.0, 10.0, 0.1, 10.0])) == 4
    assert n_verified(IN_ORDER.plan([0.1, 10.0, 10.0])) == 0
    assert IN_ORDER.plan([10.0], 0.0005).wait_s is not None
    assert n_verified(COUPLED.plan([1.0])) == 0
    assert n_verified(COUPLED.plan([1.0, 10.0, 10.0, 10.0])) == 4


def test_a_candidate_does_not_wait_for_the_sake_of_doubtful_ones_after_it() -> None:
    """It costs little to verify it, and a head start is worth less the less likely its candidates are."""
    curve = [0.3 + 0.003 * n for n in range(5)]
    found, _ = best_batch([0.5, 0.05, 0.05, 0.05], curve, 5.0, 0.8, 0.06, 0.06, lambda n: max(0.0, min(1.5, n)))
    assert found >= 1


@pytest.mark.parametrize("acceptance", [0.05, 0.5, 0.9])
def test_the_draft_continues_while_its_candidates_are_likely_to_survive(acceptance: float) -> None:
    made = knowing(FLAT, 0.005, acceptance)
    made.draft.learn_scores([*scores(0.1, 200, 0.1), *scores(0.95, 200, 10.0)])
    lookahead = made.draft.lookahead()
    least = min(DEFAULT.share, made.controller.rate * made.draft.costs.concurrent.token_s)
    found = set()
    for confidences in itertools.product([0.1, 1.0, 10.0], repeat=4):
        survival = math.prod(map(lookahead.probability, confidences))
        assert lookahead.allows(confidences) == (survival >= least)
        found.add(survival >= least)
    assert found == {True, False}
    assert lookahead.allows([10.0] * (N_AHEAD - 1))
    assert not lookahead.allows([10.0] * N_AHEAD), "the limit"


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
    made = knowing(target_s, schedules=(OFF,))
    assert verified(made.plan(found=found(*chances))) == (n, Origin.LOOKUP if n else Origin.DRAFT)
    assert n_verified(made.plan(found=found(*chances), n_room=3)) == min(n, 2)


def test_more_candidates_may_come_from_the_text_than_from_the_draft() -> None:
    for n_most in (0, 16):
        made = knowing(FLAT, 0.002, 0.8, (SYNC,), n_most=n_most)
        made.controller.target.alone.add(17, 0.030)
        assert verified(made.plan(found=found(*[0.99] * 20))) == (n_most or 8, Origin.LOOKUP)
        assert n_verified(made.plan(found=found(*[0.99] * 20), n_room=12)) == (11 if n_most else 8)
        assert n_verified(made.plan([SURE] * 16)) == 8


@BOTH
def test_the_proposer_of_the_greater_value_is_verified(schedule: Schedule) -> None:
    made = knowing(FLAT, 0.002, 0.8, (schedule,))
    assert made.plan([SURE] * 8, found=found(0.5, 0.5)).origin is Origin.DRAFT
    assert verified(made.plan([DOUBTFUL] * 2, found=found(*[0.97] * 8))) == (8, Origin.LOOKUP)
    assert made.plan([], 0.002, found(*[0.99] * 8)).origin is Origin.LOOKUP, "instead of a wait for the draft"
    assert made.plan([], 0.002, found(0.05)) == made.plan([], 0.002)


@BOTH
def test_what_two_proposers_predict_is_more_likely(schedule: Schedule) -> None:
    made = knowing(FLAT, 0.002, 0.6, (schedule,))
    assert verified(made.plan([DOUBTFUL], found=found(0.5, 0.9, 0.9, 0.9, 0.9))) == (5, Origin.LOOKUP)
    assert n_verified(made.plan([DOUBTFUL] * 2)) < 2
    assert verified(made.plan([DOUBTFUL] * 2, found=found(0.9, 0.9))) == (2, Origin.DRAFT)


def test_in_turns_the_draft_is_asked_first_where_the_lookup_is_unsure() -> None:
    """Its time is less than what the target loses with candidates of which the first is usually wrong."""
    made = knowing({1: 0.01, 2: 0.014, 8: 0.02}, 0.001, 0.8, (SYNC,))
    assert made.plan([], 0.001, found(0.6, *[0.9] * 6)).wait_s is not None
    assert made.plan([], 0.001, found(0.99, *[0.9] * 6)).origin is Origin.LOOKUP
    assert made.plan([], math.inf, found(0.6, *[0.9] * 6)).origin is Origin.LOOKUP, "it will not answer"


def test_a_draft_in_turns_that_is_asked_is_told_what_the_lookup_expects_as_far_as_reading_that_saves_time() -> None:
    made = knowing({1: 0.01, 2: 0.014, 8: 0.02}, 0.001, 0.8, (SYNC,))
    for chances, n in (([0.6, 0.9, 0.9, 0.1, 0.9], 3), ([0.3, 0.9, 0.9], 3), ([0.1, 0.9, 0.9], 0)):
        plan = made.plan([], 0.001, found(*chances))
        assert (plan.wait_s is not None, len(plan.candidates)) == (True, n)
    plan = made.plan([SURE], 0.001, found(0.6, 0.5, 0.6))
    assert (plan.wait_s is not None, len(plan.candidates)) == (True, 2), "what is drafted is not read again"
    made = knowing({1: 0.01, 2: 0.014, 8: 0.02}, 0.001, 0.8, (SYNC,), mode=REJECTION)
    plan = made.plan([], 0.001, found(0.3, 0.9, 0.9))
    assert (plan.wait_s is not None, len(plan.candidates)) == (True, 0), "it must not depend on what is drawn"


@BOTH
def test_with_rejection_sampling_the_choice_does_not_depend_on_what_was_drawn(schedule: Schedule) -> None:
    made = knowing(FLAT, 0.002, 0.6, (schedule,), mode=REJECTION)
    for chances in ([0.9] * 8, [0.6] * 4, [0.3]):
        origins = {
            made.plan([sure] * n, next_s, found(*chances)).origin
            for sure in (SURE, 1.0, DOUBTFUL)
            for n in range(8)  # how many there are depends on what was drawn before
            for next_s in (0.001, math.inf)  # and so does whether the draft has paused
        }
        assert len(origins) == 1


def test_a_text_that_misleads_uses_up_its_credit_and_then_only_what_is_beyond_doubt_is_verified() -> None:
    made = knowing(FLAT, schedules=(OFF,))
    lookup, n = found(*[0.9] * 8, low=0.1), 0
    while n_found := n_verified(made.plan(found=lookup)):
        made.step(1, n_found, made.controller.costs.seconds(n_found + 1), origin=Origin.LOOKUP)
        n += 1
        assert n < 20
    assert n_verified(made.plan(found=found(*[0.9] * 8, low=0.8))) >= 4
    for _ in range(2000):  # a share of the time is credit
        made.step(1, 0, 0.01)
    assert n_verified(made.plan(found=lookup)) == 8


def test_what_the_lookup_gains_or_loses_is_not_the_drafts() -> None:
    made = knowing(FLAT, 0.002, 0.8, (SYNC, OFF))
    made.use(SYNC_MODE)
    budget, rates = made.controller.chooser.budget, made.rates()
    credit_s = budget.credit_s
    for _ in range(100):
        made.step(9, 8, FLAT[9], origin=Origin.LOOKUP)
    assert budget.credit_s == pytest.approx(credit_s, abs=0.02), "but a share of the time"
    assert made.rates() == pytest.approx(rates), "a forecast is not compared with it"
    credit_s = budget.credit_s
    made.step(9, 8, FLAT[9], FLAT[9] + 0.004, Origin.LOOKUP)
    assert budget.credit_s == pytest.approx(credit_s - 0.004, abs=0.001), "a draft that is asked before pays for that"


def test_in_turns_the_draft_has_to_read_what_the_lookup_finds() -> None:
    """A forecast counts it, also in the next run; and so does the time until the next candidate."""
    made = knowing(FLAT, 0.002, 0.8, (SYNC, OFF))
    made.draft.learn_draft(20, 20 * 0.001)
    made.use(SYNC_MODE)
    rates, next_s = made.rates(), made.draft.next_s
    for _ in range(200):
        made.step(9, 8, FLAT[9], origin=Origin.LOOKUP)
        made.step(1, 0, FLAT[1])
    assert made.rates()[SYNC] == pytest.approx(1 / (1 / rates[SYNC] + 8 * 0.001 / 4), rel=0.2)
    assert made.rates()[OFF] == pytest.approx(rates[OFF])
    assert made.draft.next_s == pytest.approx(next_s + 200 * 8 * 0.001)
    made.draft.learn_draft(1, 0.002)
    assert made.draft.next_s == pytest.approx(0.002, rel=0.1)
    restored = knowing(FLAT, 0.002, 0.8, (SYNC, OFF))
    assert restored.restore(made.state()), "though the lookup has found almost all of the text"
    assert restored.rates()[SYNC] == pytest.approx(made.rates()[SYNC], rel=0.05)


def test_a_draft_that_has_ended_is_left_out_of_this_text() -> None:
    made = knowing(SLOW_TARGET, 0.025, 0.9)
    made.draft.has_ended = True
    assert made.plan([SURE] * 4, 0.01) == Plan()
    for _ in range(300):
        made.step(1, 0, 0.49)
        assert (made.controller.mode, made.draft.n_probe, made.plan([SURE])) == (ALONE, 0, Plan())
    made.begin(10)
    assert made.controller.schedule is ASYNC
    assert made.draft.lookahead().allows(())


def test_of_a_block_draft_what_is_left_is_verified_or_a_new_block_is_made() -> None:
    target = TargetCosts()
    for n in range(1, 10):
        target.alone.add(n, 1.0 + 0.1 * n)
    draft = DraftEstimates(target, 8, 16, (SYNC, OFF), n_depths=4, block=8, in_turns=True)
    for n in (1, 8):
        draft.learn_draft(n, 0.2 + 0.02 * n)
    assert draft.costs.alone.seconds(0.0, 4) < 0.3, "a block of four is one decode"
    draft.schedule, draft.forecast = SYNC, Forecast(1.5, 2, 4, stop=(0.0,))

    def n_drafted(chances: list[float], next_s: float) -> int:
        limits = {"in_order": False, "must_draft": False}
        return best_drafted(draft, chances, target.alone, 8, 1.5, next_s, **limits)[0]

    assert draft.n_block == 4
    assert n_drafted([], draft.next_s) == 1, "there is none: it is made"
    assert n_drafted([0.9, 0.9], draft.next_s) == 2, "what is left is likely"
    assert n_drafted([0.1, 0.9], draft.next_s) == 3, "what is left is not: a new block replaces it"
    assert n_drafted([0.1, 0.9], math.inf) == 0, "it has just been made"
    assert n_drafted([0.9, 0.9, 0.1], math.inf) == 2, "only those that pay are verified"

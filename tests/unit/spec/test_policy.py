"""What a policy decides."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.calibration import Calibration
from duo.spec.constants import DEFAULT
from duo.spec.policy import REJECTION, Decision, Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from tests.unit.spec.machines import N_AHEAD
from tests.unit.spec.policies import CLIFF, FLAT, SLOW_TARGET, STEEP, decide, policy, scores

SURE, DOUBTFUL = 9.0, 0.0
EASY = {1: 0.1, 2: 0.12, 4: 0.13}
DEAR = {n: 0.1 + 0.15 * (n - 1) for n in range(1, 10)}
ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
STEP = StepCost(0, 0.1, 0.1)


def share_of(calibration: Calibration, confidence: float) -> float:
    return calibration.probabilities()[bisect_right(Calibration.EDGES, confidence)]


# How many candidates to verify


@pytest.mark.parametrize("schedule", ALL)
def test_before_anything_is_measured_the_target_decodes_alone(schedule: Schedule) -> None:
    made = Policy(4, N_AHEAD, (schedule,))
    assert made.rate == 0
    assert decide(made, [SURE] * 9, 100, 0.1) == Decision(0)
    assert decide(made, [], 100, 0.001) == Decision(0), "without a wait"


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
@pytest.mark.parametrize("target_s", [SLOW_TARGET, FLAT, STEEP, CLIFF], ids=["slow", "flat", "steep", "cliff"])
def test_better_candidates_are_never_verified_less(target_s: dict[int, float], schedule: Schedule) -> None:
    found = [
        decide(policy(target_s, 0.002, share / 10, schedules=(schedule,)), [1.0] * 8, 100, math.inf).n_verify
        for share in range(11)
    ]
    assert found == sorted(found)
    assert found[0] == (schedule is SYNC), "if it was asked for, it drafts even where that does not pay"
    assert found[-1] >= 4 or target_s is STEEP
    sure, doubtful = (decide(policy(FLAT), [confidence] * 8, 100, math.inf).n_verify for confidence in (SURE, DOUBTFUL))
    assert doubtful < sure >= 4


def test_a_batch_size_that_costs_more_than_it_brings_is_skipped() -> None:
    """Two cost twice one, four cost little more than two: one or none is right, then as many as there are."""
    assert decide(policy(CLIFF, acceptance=0.74), [1.2], 100, math.inf).n_verify == 0
    assert decide(policy(CLIFF, acceptance=0.74), [1.2] * 4, 100, math.inf).n_verify == 4


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
    decision = decide(made, confidences, n_room, next_s)
    bound = min(n_max, n_room - 1)
    assert 0 <= decision.n_verify <= min(len(confidences), bound)
    if decision.wait_s is not None:
        assert len(confidences) < bound
        assert next_s < decision.wait_s <= next_s + made.costs.draft_s < math.inf
    if made.schedule is OFF or bound <= 0:
        assert decision == Decision(0)
    assert n_max or made.schedule is OFF


# Waits


def test_sequential_policy_asks_for_a_candidate_once_it_knows_both_models() -> None:
    made = Policy(4, N_AHEAD, (SYNC,))
    made.learn_warmup(1, 0.001)
    assert decide(made, [], 100, made.costs.draft_s) == Decision(0)
    made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert decide(made, [], 100, made.costs.draft_s).wait_s is not None


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
        measures = decide(made, [SURE], 100, math.inf) == Decision(0)
        found += measures
        made.learn_step(1 if measures else 2, StepCost(0, 0.1, 0.1) if measures else StepCost(1, 0.1, 0.13))
        made.chooser.now = SYNC
    assert n_decodes[0] <= found <= n_decodes[1]


def test_a_fast_draft_is_waited_for_and_a_slow_one_is_not() -> None:
    fast = policy(SLOW_TARGET, 0.025)
    wait_s = decide(fast, [], 100, next_s=0.025).wait_s
    assert wait_s is not None
    assert 0.025 < wait_s <= 0.050, "until it is expected, and no longer than one more would take"
    assert decide(policy(SLOW_TARGET, 0.8), [], 100, next_s=0.8) == Decision(0)
    assert decide(fast, [], 100, next_s=math.inf) == Decision(0), "no candidate will come"


def test_waits_end_when_there_are_enough_candidates_or_the_next_one_is_late() -> None:
    def waits(draft_s: float, next_s: float) -> list[bool]:
        made = policy(SLOW_TARGET, draft_s, acceptance=0.8)
        return [decide(made, [1.0] * n, 100, next_s).wait_s is not None for n in range(9)]

    found = waits(0.1, 0.1)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[8]) == (True, False)
    assert sum(waits(0.15, 0.01)) > sum(waits(0.15, 0.15))


# Rejection sampling: from left to right


def doubtful_or_sure(mode: str) -> Policy:
    """Candidates of confidence 0.1, 1 and 10 are right in 5, 60 and 95 % of cases."""
    made = policy(CLIFF, 0.002, 0.6, mode=mode)
    made.learn_scores([*scores(0.05, 200, 0.1), *scores(0.95, 200, 10.0)])
    return made


IN_ORDER, COUPLED = doubtful_or_sure(REJECTION), doubtful_or_sure("coupled")
ASSORTED = st.lists(st.sampled_from([0.1, 1.0, 10.0]), max_size=6)


def verified(made: Policy, confidences: list[float]) -> int:
    """How many of these candidates are verified if no other will come."""
    return decide(made, confidences, 100, math.inf).n_verify


@given(before=ASSORTED, first=ASSORTED, second=ASSORTED)
def test_in_order_later_candidates_do_not_influence_the_decision_on_earlier_ones(
    before: list[float], first: list[float], second: list[float]
) -> None:
    taken = [min(verified(IN_ORDER, before + after), len(before)) for after in (first, second)]
    assert taken[0] == taken[1]


def test_in_order_candidates_are_verified_as_long_as_each_is_worth_it() -> None:
    assert verified(IN_ORDER, [10.0, 10.0, 10.0, 10.0, 0.1, 10.0]) == 4
    assert verified(IN_ORDER, [0.1, 10.0, 10.0]) == 0
    assert decide(IN_ORDER, [10.0], 100, 0.0005).wait_s is not None


def test_coupled_candidates_are_judged_together() -> None:
    """Two cost as much as five: a doubtful candidate is verified if those after it are good, and not by itself."""
    assert verified(COUPLED, [1.0]) == 0
    assert verified(COUPLED, [1.0, 10.0, 10.0, 10.0]) == 4


# How far the draft may go ahead


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


def test_after_the_draft_has_ended_the_target_stays_alone_in_this_text() -> None:
    made = policy(SLOW_TARGET, 0.025, 0.9)
    made.stop_drafting()
    assert not made.lookahead().allows([])
    assert decide(made, [SURE] * 4, 100, 0.01) == Decision(0)
    for _ in range(1000):
        made.learn_step(1, StepCost(0, 0.49, 0.49))
        assert made.schedule is OFF
        assert made.probe_size() == 0
    assert made.rate == pytest.approx(1 / 0.49)
    made.begin(10)
    assert made.schedule is ASYNC
    assert made.lookahead().allows(())


# A remote draft


def test_with_a_remote_draft_the_target_is_first_measured_alone() -> None:
    """Otherwise nothing would show that the draft, on the same machine after all, slows it down."""
    made = Policy(4, 8, remote=True)
    made.begin(10)
    for _ in range(2):
        assert made.schedule is OFF
        assert not made.lookahead().allows(())
        made.learn_step(1, StepCost(0, 0.010, 0.010))
    assert made.schedule is ASYNC
    assert made.alone.target_s(1) == pytest.approx(0.010)
    again = Policy(4, 8, remote=True)
    again.restore(made.state())
    again.begin(10)
    again.learn_step(1, StepCost(0, 0.010, 0.010))
    assert again.schedule is ASYNC, "what was learned counts as one measurement"
    assert Policy(4, 8, (ASYNC,), remote=True).schedule is ASYNC, "the only schedule allowed"


# Asking a draft that is off


def unsure(target_s: dict[int, float] = EASY, schedules: Sequence[Schedule] = ALL, *, remote: bool = False) -> Policy:
    """A policy whose draft may pay or not, in a text whose prompt is too long to try it."""
    made = policy(target_s, 0.01, 0.3, schedules=schedules, remote=remote)
    made.begin(400)
    continue_off(made, 16)
    return made


def continue_off(made: Policy, n_steps: int) -> None:
    for _ in range(n_steps):
        made.learn_step(1, STEP)


def test_a_draft_that_may_pay_is_probed_when_nothing_was_scored_for_long() -> None:
    made = unsure()
    assert (made.schedule, made.probe_size()) == (OFF, 24)
    made.learn_scores(scores(0.3, 2))
    continue_off(made, 1)
    assert made.probe_size() == 0
    continue_off(made, 16)
    assert made.probe_size() == 24
    made.learn_probe([], 0, 0.0, whole=False)
    assert made.probe_size() == 0, "it was not possible"


def test_probes_are_paid_from_the_credit() -> None:
    made = unsure()
    credit_s = made.chooser.budget.credit_s
    made.learn_probe(scores(0.3, 12), 24, 0.24, whole=False)
    assert made.chooser.budget.credit_s == pytest.approx(credit_s - 0.24)
    assert made.read_s == 0.01
    continue_off(made, 200)
    assert made.probe_size() == 0
    continue_off(made, 800)
    assert made.probe_size() >= 16, "a share of 100 s"


@pytest.mark.parametrize(("target_s", "pays"), [(EASY, True), (DEAR, False)])
def test_a_draft_is_not_asked_where_it_cannot_pay(target_s: dict[int, float], pays: bool) -> None:
    made = unsure(target_s)
    made.chooser.budget.spend(-99.0)
    asked = False
    for _ in range(200):
        asked = asked or made.probe_size() > 0
        made.learn_step(1, STEP)
    assert (asked or bool(made.chooser.changes)) is pays

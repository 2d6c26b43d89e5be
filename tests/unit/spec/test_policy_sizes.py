"""Batches of arbitrary candidates, that measure T(n) while the draft is idle. T(1) is 0.1 s."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from duo.spec.types import Origin
from tests.unit.spec.machines import N_AHEAD
from tests.unit.spec.policies import decide

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
T = {1: 0.1, 2: 0.12, 4: 0.3, 8: 0.8}  # drafting does not pay


def begun(schedules: Sequence[Schedule] = ALL, n_max: int = 8, n_room: int | None = None) -> Policy:
    made = Policy(n_max, N_AHEAD, schedules)
    made.begin(10, n_room, mode="greedy")
    made.learn_warmup(1, 0.05)
    return made


def sizes(made: Policy, n_steps: int) -> list[int]:
    """Sizes of the batches that the policy decides on, without candidates of the draft."""
    found = []
    for _ in range(n_steps):
        decision = decide(made, (), 100, math.inf)
        found.append(n := decision.n_verify + 1)
        made.learn_step(1, StepCost(decision.n_verify, T[n], T[n], decision.origin))
    return found


def test_four_tokens_are_measured_twice_after_two_decodes_of_one_and_then_two_tokens_once() -> None:
    made = begun()
    assert sizes(made, 40) == [1, 1, 4, 4, 2, *[1] * 35]
    assert made.alone.target(4).value == pytest.approx(0.3)


def test_its_tokens_are_arbitrary_unless_the_text_itself_has_as_many() -> None:
    for n_found, source in ((0, Origin.ANY), (2, Origin.ANY), (3, Origin.LOOKUP)):
        made = begun()
        sizes(made, 2)
        assert decide(made, (), 100, math.inf, [(0.01, 9.0)] * n_found) == Decision(3, origin=source)


@pytest.mark.parametrize("schedules", [(SYNC,), (ASYNC,), (OFF,)])
def test_nothing_is_measured_where_there_is_no_choice(schedules: Sequence[Schedule]) -> None:
    assert sizes(begun(schedules), 10) == [1] * 10


@pytest.mark.parametrize(("n_room", "found"), [(16, [1, 1, 1]), (28, [1, 1, 2]), (60, [1, 1, 4])])
def test_a_smaller_batch_is_measured_if_the_credit_covers_no_more(n_room: int, found: list[int]) -> None:
    """Of 0.8, 1.4 and 3 tokens; two in a batch may take 2.1 times as long as one, and four 2.75 times."""
    assert sizes(begun(n_room=n_room), 3) == found


def test_another_run_measures_two_tokens_to_see_whether_what_is_known_holds() -> None:
    made = begun()
    made.learn_scores([(1.0, False)] * 24)
    sizes(made, 5)
    again = Policy(8, N_AHEAD)
    again.restore(json.loads(json.dumps(made.state())))
    again.begin(10, mode="greedy")
    assert sizes(again, 20) == [1, 2, *[1] * 18]
    again.begin(10, mode="greedy")
    assert sizes(again, 20) == [1] * 20, "once in a run"

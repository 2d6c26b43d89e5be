"""Waiting and waking, with real threads. A wait that is never woken would run into the joins' time limit."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TypeVar

import pytest

from duo.engine.queue import CandidateQueue
from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Candidates, Guess
from tests.engine.helpers import PROMPT, far_ahead, make_queue
from tests.fakes import Eager, Scripted

LONG = 3600.0


BESIDE = (Schedule.ASYNC,)


class Patient(Policy):
    """Waits for ever while there are no candidates."""

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        waiting.set()
        return Decision(9) if confidences or next_s == math.inf else Decision(0, LONG)


waiting = threading.Event()


def patient_queue() -> CandidateQueue:
    waiting.clear()
    return timed(make_queue(Patient(4, 6, BESIDE)))


def timed(queue: CandidateQueue, draft_s: float = 0.001) -> CandidateQueue:
    """The queue with a draft beside the target that has made a token in `draft_s`, for a text that is gone."""
    queue.begin_beside()
    queue.publish(9, 0, Guess(0, 0.0), 1, draft_s)
    return queue


T = TypeVar("T")


def wakes(act: Callable[[], object], wait: Callable[[], T]) -> T:
    """What `wait` returns on another thread after `act`."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(wait()), daemon=True)
    thread.start()
    act()
    thread.join(timeout=30)
    assert not thread.is_alive(), "the wake-up was lost"
    return results[0]


def wakes_sleeper(queue: CandidateQueue, act: Callable[[], object], wait: Callable[[], T]) -> T:
    """The same, with `act` only when the other thread sleeps."""

    def act_late() -> None:
        while not queue._changed._waiters:  # type: ignore[attr-defined]
            time.sleep(0.001)
        act()

    return wakes(act_late, wait)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("event", ["end_beside", "stop_drafting"])
def test_the_target_is_woken_when_the_drafting_ends(event: str, late: bool) -> None:
    queue = patient_queue()

    def act() -> None:
        if late:
            waiting.wait(30)
        getattr(queue, event)()

    assert len(wakes(act, lambda: queue.take(100))) == 0


def test_the_target_is_woken_by_a_candidate() -> None:
    queue = patient_queue()

    def act() -> None:
        waiting.wait(30)
        queue.publish(0, len(PROMPT), Guess(7, 1.0), 1, 0.001)

    assert wakes(act, lambda: queue.take(100)).tokens == (7,)


@pytest.mark.parametrize("event", ["end_beside", "stop_drafting"])
def test_the_draft_is_woken_when_the_drafting_ends(event: str) -> None:
    queue = far_ahead()
    assert wakes_sleeper(queue, getattr(queue, event), queue.wait_for_room) is False


def test_the_draft_is_woken_by_a_commit() -> None:
    queue = far_ahead()
    assert wakes_sleeper(queue, lambda: queue.commit((7,)), queue.wait_for_room) is True


def test_a_wait_in_vain_is_the_last() -> None:
    """A draft that is there and does not deliver (a starved thread, a hung device) keeps the target once per step."""
    decisions = []

    class Hopeful(Policy):
        def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
            decisions.append(next_s)
            return Decision(9) if next_s == math.inf else Decision(0, 0.001)

    queue = timed(make_queue(Hopeful(4, 6, BESIDE)))
    assert queue.take(100) == Candidates()
    assert decisions == [0.001, math.inf]


def test_the_draft_is_woken_when_its_rest_ends() -> None:
    """What the policy learns from a step may be what the draft waits for, not the tokens."""

    class Resting(Policy):
        rested = False

        def may_draft(self, confidences: Sequence[float]) -> bool:
            return self.rested

        def learn_step(self, n_tokens: int, cost: StepCost) -> None:
            self.rested = True

    queue = make_queue(Resting(4, 6, BESIDE))
    queue.begin_beside()
    assert wakes_sleeper(queue, lambda: queue.commit((7,), StepCost(0, 0.1, 0.1)), queue.wait_for_room) is True


def test_nothing_is_waited_for_without_a_draft_beside_the_target() -> None:
    queue = patient_queue()
    queue.end_beside()
    assert len(queue.take(100)) == 0
    assert len(make_queue(Patient(4, 6, BESIDE), has_draft=False).take(100)) == 0


# When the next candidate can be expected


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the queue sees, to be set."""
    now = [100.0]
    monkeypatch.setattr("duo.engine.queue.time.perf_counter", lambda: now[0])
    return now


class Asked(Eager):
    """Remembers what it was told of the next candidate."""

    next_s = 0.0

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        self.next_s = next_s
        return Decision(0)


def next_s(queue: CandidateQueue, asked: Asked) -> float:
    queue.take(100)
    return asked.next_s


def test_the_next_candidate_is_expected_when_a_draft_token_takes_that_long(clock: list[float]) -> None:
    asked = Asked(4, 6)
    queue = timed(make_queue(asked), draft_s=8.0)
    assert next_s(queue, asked) == 8.0, "none is in the making"
    queue.begin(0)
    for seconds, left in ((0.0, 8.0), (5.0, 3.0), (9.0, 0.8)):
        clock[0] = 100.0 + seconds
        assert next_s(queue, asked) == pytest.approx(left)
    clock[0] = 117.0
    assert next_s(queue, asked) == math.inf, "it has stalled"


def test_a_stale_token_in_the_making_has_to_be_made_again(clock: list[float]) -> None:
    asked = Asked(4, 6)
    queue = timed(make_queue(asked), draft_s=8.0)
    queue.publish(0, len(PROMPT), Guess(7, 1.0), 1, 8.0)
    queue.begin(0)
    clock[0] += 5.0
    queue.commit((3,))
    assert next_s(queue, asked) == pytest.approx(3.0 + 8.0)


def test_a_token_that_was_given_up_is_not_in_the_making(clock: list[float]) -> None:
    asked = Asked(4, 6)
    queue = timed(make_queue(asked), draft_s=8.0)
    queue.begin(0)
    clock[0] += 5.0
    queue.end_beside()
    assert next_s(queue, asked) == math.inf
    queue.begin_beside()
    assert next_s(queue, asked) == 8.0


# In turns


def test_in_turns_the_target_never_waits_and_is_told_what_to_verify() -> None:
    queue = make_queue(Eager(2, 6, Schedule.SYNC))
    assert queue.take_in_turn(100) is None
    queue.publish(0, len(PROMPT), Guess(7, 1.0), 1, 0.001)
    assert queue.take_in_turn(100) is None
    assert queue.take_in_turn(2) == Candidates((Guess(7, 1.0),)), "there is room for no more"
    queue.publish(0, len(PROMPT) + 1, Guess(8, 2.0), 1, 0.001)
    assert queue.take_in_turn(100) == Candidates((Guess(7, 1.0), Guess(8, 2.0)))


def test_in_turns_a_candidate_takes_the_time_of_a_draft_token() -> None:
    asked = Asked(4, 6, Schedule.SYNC)
    queue = make_queue(asked)
    queue.publish(9, 0, Guess(0, 0.0), 1, 8.0)
    queue.take_in_turn(100)
    assert asked.next_s == 8.0
    queue.stop_drafting()
    assert queue.take_in_turn(100) == Candidates()
    assert asked.next_s == math.inf


def test_in_turns_a_draft_that_brought_nothing_is_not_asked_again_in_this_step() -> None:
    queue = make_queue(Eager(2, 6, Schedule.SYNC))
    assert queue.take_in_turn(100) is None
    queue.publish(0, len(PROMPT) + 5, Guess(7, 1.0), 1, 0.001)  # of no use
    assert queue.take_in_turn(100) == Candidates()
    queue.commit((3,))
    assert queue.take_in_turn(100) is None


@pytest.mark.parametrize("schedule", [Schedule.ASYNC, Schedule.SYNC])
def test_a_token_made_in_the_middle_of_a_change_teaches_no_time(schedule: Schedule) -> None:
    """It was made beside the target and ends in turns, or the other way round."""
    policy = Eager(4, 6, schedule)
    queue = make_queue(policy)
    queue.begin_beside()
    if schedule is Schedule.ASYNC:
        queue.end_beside()
    queue.publish(0, len(PROMPT), Guess(7, 1.0), 1, 8.0)
    assert (policy.alone.draft_s, policy.beside.draft_s) == (0.0, 0.0)


def test_the_queue_asks_the_policy() -> None:
    queue = make_queue(Scripted(4, 6, iter([Schedule.OFF, Schedule.SYNC]), repeat(True)))
    assert queue.schedule() is Schedule.OFF
    queue.commit((7,), StepCost(0, 0.1, 0.1))
    assert queue.schedule() is Schedule.SYNC
    queue.commit((7,), StepCost(0, 0.1, 0.1))
    assert queue.probe_due()
    queue.stop_drafting()
    assert queue.schedule() is Schedule.OFF
    assert not queue.probe_due()
    assert make_queue(Eager(4, 6, draft_threads=(3,))).draft_threads() == 3

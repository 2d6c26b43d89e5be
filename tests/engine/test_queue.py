"""Waiting and waking, with real threads. A wait that is never woken would run into the joins' time limit."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from duo.engine.draft_thread import DraftThread
from duo.engine.queue import CandidateQueue
from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.session import Session
from duo.spec.types import Candidates
from tests.engine.helpers import PROMPT, make_drafter, make_queue
from tests.fakes import N_VOCAB, FakeContext

LONG = 3600.0


class Patient(Policy):
    """Waits for ever while there are no candidates."""

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        waiting.set()
        return Decision(9) if confidences or next_s == math.inf else Decision(0, LONG)


waiting = threading.Event()


def patient_queue() -> CandidateQueue:
    waiting.clear()
    queue = CandidateQueue(Session(PROMPT, N_VOCAB), Patient(4, 6), drafting=True)
    queue.publish(9, 0, 0, 0.0, draft_s=0.001)  # stale: only the time is learned
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
@pytest.mark.parametrize("event", ["close", "stop_drafting"])
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
        queue.publish(0, len(PROMPT), 7, 1.0, None)

    assert wakes(act, lambda: queue.take(100)).tokens == (7,)


def test_the_draft_is_woken_by_close_when_it_is_far_ahead() -> None:
    queue = make_queue(n_ahead=1)
    queue.publish(0, len(PROMPT), 7, 9.0, None)
    assert wakes_sleeper(queue, queue.close, queue.wait_for_room) is False


def test_the_draft_is_woken_by_a_commit() -> None:
    queue = make_queue(n_ahead=1)
    queue.publish(0, len(PROMPT), 7, 9.0, None)
    assert wakes_sleeper(queue, lambda: queue.commit((7,)), queue.wait_for_room) is True


def test_a_wait_in_vain_is_the_last() -> None:
    """A draft that is there and does not deliver (a starved thread, a hung device) keeps the target once per step."""
    decisions = []

    class Hopeful(Policy):
        def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
            decisions.append(next_s)
            return Decision(9) if next_s == math.inf else Decision(0, 0.001)

    queue = CandidateQueue(Session(PROMPT, N_VOCAB), Hopeful(4, 6), drafting=True)
    queue.publish(9, 0, 0, 0.0, draft_s=0.001)
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

    queue = CandidateQueue(Session(PROMPT, N_VOCAB), Resting(4, 6), drafting=True)
    assert wakes_sleeper(queue, lambda: queue.commit((7,), StepCost(0, 0.1, 0.1)), queue.wait_for_room) is True


def test_nothing_is_waited_for_without_a_draft() -> None:
    queue = make_queue(drafting=False)
    assert len(queue.take(100)) == 0


def test_the_draft_thread_is_dead_after_with_even_if_it_never_got_room() -> None:
    queue = make_queue(n_ahead=1)
    queue.publish(0, len(PROMPT), 7, 9.0, None)
    draft = FakeContext()
    with DraftThread(make_drafter(draft, queue), queue, draft.abort) as thread:
        assert thread._thread.is_alive()
        assert not thread._thread.daemon
    assert not thread._thread.is_alive()
    assert thread.error is None


def test_the_draft_thread_carries_its_exception() -> None:
    queue = make_queue()
    error = RuntimeError("gone")

    def fail(_: object) -> int:
        raise error

    draft = FakeContext(fail)
    with DraftThread(make_drafter(draft, queue), queue, draft.abort) as thread:
        thread._thread.join(timeout=30)
        assert thread.error is error


def test_a_draft_in_the_middle_of_a_decode_is_aborted_and_joined() -> None:
    queue = make_queue()
    draft = FakeContext()
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        leave.wait(30)

    draft.during = stay
    with DraftThread(make_drafter(draft, queue), queue, leave.set) as thread:
        inside.wait(30)
    assert not thread._thread.is_alive()

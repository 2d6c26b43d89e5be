"""Waiting and waking, with real threads. A wait that is never woken would run into the joins' time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from duo.engine.queue import CandidateQueue, Offer
from duo.spec.policy import Lookahead
from duo.spec.types import Guess
from tests.fakes import CERTAIN
from tests.unit.engine.helpers import PROMPT, as_far_as, far_ahead, make_queue

LONG = 3600.0
NEXT = len(PROMPT)
T = TypeVar("T")


def offer(position: int = NEXT, epoch: int = 0, n_known: int | None = None) -> Offer:
    return Offer(epoch, position, Guess(7, 1.0), 1, 0.001, n_known)


def wakes(act: Callable[[], object], wait: Callable[[], T]) -> T:
    """What `wait` returns on another thread after `act`."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(wait()), daemon=True)
    thread.start()
    act()
    thread.join(timeout=60)
    assert not thread.is_alive(), "the wake-up was lost"
    return results[0]


def when_asleep(queue: CandidateQueue, act: Callable[[], object]) -> Callable[[], None]:
    """`act`, as soon as another thread sleeps."""

    def act_late() -> None:
        while not queue._changed._waiters:  # type: ignore[attr-defined]
            time.sleep(0.001)
        act()

    return act_late


# The target


@pytest.mark.parametrize("late", [True, False])
def test_the_target_is_woken_by_the_end(late: bool) -> None:
    queue = make_queue()
    act = when_asleep(queue, queue.close) if late else queue.close
    assert wakes(act, lambda: queue.wait(LONG)) is False


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("remote", [True, False])
def test_the_target_is_woken_by_an_offer(remote: bool, late: bool) -> None:
    queue = make_queue()

    def publish() -> None:
        if remote:
            queue.publish_remote(offer())
        else:
            queue.publish(*offer()[:5])

    assert wakes(when_asleep(queue, publish) if late else publish, lambda: queue.wait(LONG)) is True
    assert queue.collect() == [offer()]
    assert queue.collect() == []


def test_the_target_waits_for_nothing_that_cannot_come() -> None:
    queue = make_queue()
    assert queue.wait(0.0) is False
    queue.close()
    assert queue.wait(LONG) is False
    queue.publish(*offer()[:5])
    assert queue.wait(LONG) is True, "what came before the end is there"


# The draft


def test_the_draft_is_woken_by_the_end() -> None:
    queue = far_ahead()
    assert wakes(when_asleep(queue, queue.close), queue.wait_for_room) is False


def test_the_draft_is_woken_by_what_was_accepted() -> None:
    queue = far_ahead()

    def accept() -> None:
        queue.collect()
        queue.tell(0, [7], as_far_as(1), ())

    assert wakes(when_asleep(queue, accept), queue.wait_for_room) is True
    assert queue.begin() == (0, [*PROMPT, 7])
    assert queue.begin() == (0, []), "each is told once"


def test_the_draft_is_woken_when_it_may_go_on_farther() -> None:
    queue = far_ahead()
    act = when_asleep(queue, lambda: queue.tell(0, (), as_far_as(2), ()))
    assert wakes(act, queue.wait_for_room) is True


def test_the_draft_may_go_on_as_long_as_its_candidates_may_survive() -> None:
    """Those that the target has collected, and those that it has not."""
    queue = make_queue()
    queue.tell(0, (), Lookahead(6, 0.2, [0.5] * len(CERTAIN)), [1.0])
    assert queue.may_draft
    queue.publish(*offer()[:5])
    assert queue.may_draft, "a quarter"
    queue.publish(*offer(NEXT + 1)[:5])
    assert not queue.may_draft, "an eighth"
    queue.tell(1, [3], Lookahead(6, 0.2, [0.5] * len(CERTAIN)), ())
    assert queue.may_draft, "in a new epoch none of them counts"


def test_a_draft_is_told_when_its_epoch_has_passed() -> None:
    queue = make_queue()
    epoch, _ = queue.begin()
    assert not queue.tell(0, [7], as_far_as(6), ()), "what is in the making is of use"
    assert queue.tell(1, [7], as_far_as(6), ()), "no more"
    assert queue.publish(epoch, NEXT, Guess(7, 1.0), 1, 0.001) is False
    assert not queue.tell(2, [7], as_far_as(6), ()), "nothing is in the making"


def test_what_waits_to_be_verified_is_watched() -> None:
    seen: list[int] = []
    queue = CandidateQueue(6, seen.append)
    queue.open()
    queue.tell(0, PROMPT, as_far_as(6), ())
    queue.publish(*offer()[:5])
    queue.publish(*offer(NEXT + 1)[:5])
    queue.collect()
    queue.tell(0, (), as_far_as(6), [1.0, 1.0])
    queue.publish(*offer(NEXT + 2)[:5])
    queue.tell(1, [3], as_far_as(6), ())
    assert seen == [0, 1, 2, 2, 3, 0]


# A remote draft


def test_an_order_says_what_is_new_and_whether_to_go_on() -> None:
    queue = make_queue(n_ahead=1)
    assert queue.order(0.0) == (0, PROMPT, True)
    assert queue.order(0.0) == (0, [], True)
    assert queue.publish_remote(offer(n_known=NEXT))
    assert queue.order(0.0) == (0, [], False)
    queue.collect()
    queue.tell(1, [3], as_far_as(1), ())
    assert queue.order(0.0) == (1, [3], True)
    queue.close()
    assert queue.order(0.0) == (1, [], False)


def test_no_more_guesses_are_kept_than_may_be_ahead() -> None:
    queue = make_queue(n_ahead=6)
    taken = [queue.publish_remote(offer(NEXT + i, n_known=NEXT)) for i in range(100)]
    assert taken == [True] * 6 + [False] * 94
    assert len(queue.collect()) == 6


def test_nor_of_those_that_were_made_in_vain() -> None:
    """Stale ones count for nothing, so that nothing else would limit them."""
    queue = make_queue(n_ahead=6)
    queue.tell(5, [3], as_far_as(6), ())
    taken = [queue.publish_remote(offer(NEXT, n_known=NEXT)) for _ in range(100)]
    assert sum(taken) == len(queue.collect()) < 20


def test_guesses_of_no_present_text_are_not_kept() -> None:
    queue = make_queue()
    assert not queue.publish_remote(offer(epoch=1, n_known=NEXT)), "what has not begun"
    queue.close()
    assert not queue.publish_remote(offer(n_known=NEXT))
    assert queue.collect() == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the queue sees, to be set."""
    now = [100.0]
    monkeypatch.setattr("duo.engine.queue.time.perf_counter", lambda: now[0])
    return now


def test_the_first_guess_of_an_epoch_tells_how_long_orders_and_guesses_take(clock: list[float]) -> None:
    queue = make_queue()

    def latency(epoch: int, position: int) -> float | None:
        assert queue.publish_remote(Offer(epoch, position, Guess(7, 1.0), 1, 2.0, NEXT))
        (found,) = queue.collect()
        return found.latency_s

    queue.order(0.0)
    clock[0] += 5.0
    assert latency(0, NEXT) == 3.0, "without the two that it took to make it"
    assert latency(0, NEXT + 1) is None
    queue.order(0.0)
    clock[0] += 5.0
    assert latency(0, NEXT + 2) is None, "nothing new was ordered"
    queue.tell(1, [3], as_far_as(6), ())
    assert queue.began == (105.0 + 5.0, 0)
    queue.order(4.0)
    assert queue.began == (110.0 + 4.0, 1)
    clock[0] += 6.0
    assert latency(0, NEXT + 3) is None, "it knew nothing of the order"
    assert latency(1, NEXT + 1) == 4.0

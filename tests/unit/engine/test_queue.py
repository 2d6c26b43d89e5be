"""CandidateQueue; tests/unit/engine/test_draft.py has the waits of both sides, with real threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duo.engine.branches import Preparation
from duo.engine.drafter import Offer
from duo.engine.queue import CandidateQueue
from duo.spec.policy import Lookahead
from duo.spec.types import Guess, Outcome
from tests.fakes import CERTAIN, RANKS
from tests.unit.engine.helpers import PROMPT, as_far_as, make_queue

LONG = 3600.0
NEXT = len(PROMPT)
GUESS = Guess(7, 1.0)


def offer(position: int = NEXT, epoch: int = 0, n_known: int | None = None) -> Offer:
    return Offer(epoch, position, Guess(7, 1.0), 1, 0.001, n_known)


def test_a_wait_ends_without_an_offer_on_time_out_and_on_a_closed_queue() -> None:
    queue = make_queue()
    assert queue.wait(0.0) is False
    queue.close()
    assert queue.wait(LONG) is False
    queue.publish(*offer()[:5])
    assert queue.wait(LONG) is True, "an offer that came before the end is kept"


def test_the_draft_may_continue_while_its_pending_candidates_are_likely_to_survive() -> None:
    """Those that the target has collected, and those that it has not."""
    queue = make_queue()
    half = Lookahead(6, 0.2, [0.5] * len(CERTAIN))
    queue.tell(0, (), half, [1.0])
    for i, may_draft in enumerate((True, False)):  # 1/4, 1/8
        assert queue.may_draft
        queue.publish(*offer(NEXT + i)[:5])
        assert queue.may_draft is may_draft
    queue.tell(1, [3], half, ())
    assert queue.may_draft, "in a new epoch none of them counts"


def test_an_order_has_what_is_new_and_whether_to_continue() -> None:
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


@pytest.mark.parametrize(
    ("epoch", "position", "most"),
    [(0, lambda i: NEXT + i, 6), (5, lambda _: NEXT, 20)],
    ids=["as many as may be ahead", "stale ones too"],
)
def test_the_number_of_offers_of_a_remote_draft_is_limited(
    epoch: int, position: Callable[[int], int], most: int
) -> None:
    queue = make_queue(n_ahead=6)
    queue.tell(epoch, [3] * bool(epoch), as_far_as(6), ())
    taken = [queue.publish_remote(offer(position(i), n_known=NEXT)) for i in range(100)]
    assert 0 < sum(taken) == len(queue.collect()) <= most
    assert taken == sorted(taken, reverse=True)


def test_offers_of_a_later_epoch_or_another_text_are_refused() -> None:
    queue = make_queue()
    assert not queue.publish_remote(offer(epoch=1, n_known=NEXT))
    queue.close()
    assert not queue.publish_remote(offer(n_known=NEXT))
    assert queue.collect() == []


def test_the_first_candidate_of_an_epoch_measures_the_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    now, queue = [100.0], make_queue()
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def latency(epoch: int, position: int, after_s: float = 0.0) -> float | None:
        now[0] += after_s
        assert queue.publish_remote(Offer(epoch, position, Guess(7, 1.0), 1, 2.0, NEXT))
        (found,) = queue.collect()
        return found.latency_s

    queue.order(0.0)
    assert latency(0, NEXT, after_s=5.0) == 3.0, "without the two that it took to make it"
    assert latency(0, NEXT + 1) is None
    queue.order(0.0)
    assert latency(0, NEXT + 2, after_s=5.0) is None, "nothing new was ordered"
    queue.tell(1, [3], as_far_as(6), ())
    assert queue.current == (now[0], True, 1)
    queue.order(4.0)
    assert queue.current == (now[0] + 4.0, False, 1)
    assert latency(0, NEXT + 3, after_s=6.0) is None, "it was made before the order"
    assert latency(1, NEXT + 1) == 4.0


# Outcomes


OUTCOME, OTHER = Outcome(NEXT, 5), Outcome(NEXT, 6)


def preparing(n_ahead: int = 6) -> CandidateQueue:
    queue = make_queue()
    queue.tell(0, (), Lookahead(n_ahead, 0.0, CERTAIN, 4, RANKS), ())
    return queue


@pytest.mark.parametrize(
    ("epoch", "came_true", "is_stale"),
    [(0, None, False), (1, OUTCOME, False), (1, OTHER, True), (1, None, True), (2, OUTCOME, True)],
)
def test_a_decode_is_of_use_if_it_continues_what_came_true(
    epoch: int, came_true: Outcome | None, is_stale: bool
) -> None:
    queue = preparing()
    queue.begin()
    queue.continues([OUTCOME], on_chain=True)
    assert queue.tell(epoch, [5], as_far_as(6), (), came_true) is is_stale
    assert queue.current is not None
    assert (queue.current.is_stale, queue.current.n_sequences) == (is_stale, 2)


def test_a_decode_of_branches_alone_brings_no_candidate_unless_one_comes_true() -> None:
    queue = preparing()
    for came_true, is_stale in ((None, True), (OUTCOME, False)):
        queue.begin()
        queue.continues([OUTCOME], on_chain=False)
        assert queue.current is not None
        assert (queue.current.is_stale, queue.current.n_sequences) == (True, 1)
        epoch = 0 if came_true is None else 1
        assert queue.tell(epoch, [5], as_far_as(6), (), came_true) is is_stale


def test_a_verification_wakes_a_draft_that_has_drafted_enough() -> None:
    queue = preparing(n_ahead=0)
    queue.verifies(NEXT + 2)
    assert queue.wait_for_room()
    assert queue.begin().preparation == Preparation(Lookahead(0, 0.0, CERTAIN, 4, RANKS), NEXT + 2, may_draft=False)
    assert queue.publish_all(0, [Offer(0, NEXT + 1, GUESS, 0, 0.0, outcome=OUTCOME)], may_prepare=True)
    assert queue.wait_for_room(), "it has more to do"
    queue.tell(0, [7], Lookahead(0, 0.0, CERTAIN, 4, RANKS), ())
    assert queue.begin().preparation.n_verified == 0


def test_a_chain_that_grows_during_a_verification_has_new_outcomes() -> None:
    """Also if it must not grow any further."""
    queue = preparing(n_ahead=1)
    queue.verifies(NEXT)
    queue.begin()
    queue.publish(0, NEXT, GUESS, 1, 0.1)
    assert queue.wait_for_room()


def test_without_branches_a_verification_is_nothing_to_the_draft() -> None:
    queue = make_queue()
    queue.verifies(NEXT + 2)
    assert queue.begin().preparation.n_verified == 0


def test_only_the_chain_is_pending() -> None:
    seen: list[int] = []
    queue = CandidateQueue(6, seen.append)
    queue.open()
    queue.tell(0, PROMPT, as_far_as(6), ())
    offers = [Offer(0, NEXT, GUESS, 1, 0.1), Offer(0, NEXT + 1, GUESS, 0, 0.0, outcome=OUTCOME)]
    queue.publish_all(0, offers, may_prepare=False)
    queue.tell(0, (), as_far_as(6), ())
    assert seen[-1] == 1
    assert queue.collect() == offers

"""CandidateQueue and RemoteQueue; test_proposers.py has the waits of both sides, with real threads."""

import pytest

from duo.engine.async_draft import CandidateQueue, Drafted
from duo.engine.proposers import Result
from duo.engine.recorder import Recorder
from duo.remote.drafts import RemoteDraft, RemoteDrafts
from duo.remote.messages import Ahead, Text
from duo.remote.remote_queue import RemoteQueue
from duo.speculation.acceptance import Lookahead
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Candidate, Outcome
from tests.fakes import CERTAIN, N_VOCAB, RANKS, FakeContext, ManualClock
from tests.unit.engine.helpers import PROMPT, as_far_as, begun, make_queue, make_text

NEXT = len(PROMPT)
GUESS = Candidate(7, 1.0, alternatives=(5, 6))


def opened(n_ahead: int = 6) -> RemoteQueue:
    queue = RemoteQueue(TokenSequence(PROMPT, N_VOCAB), Recorder(ManualClock()))
    queue.open()
    queue.allow(as_far_as(n_ahead))
    return queue


def receive(queue: RemoteQueue, position: int = NEXT) -> bool:
    return queue.offer(0, position, GUESS, NEXT, Drafted(1, 0.1))


def test_the_draft_may_continue_while_its_pending_candidates_are_likely_to_survive() -> None:
    queue = make_queue()
    queue.allow(Lookahead(6, 0.2, [0.5] * len(CERTAIN)))
    for i, may_draft in enumerate((True, True, False)):  # 1/2, 1/4, 1/8
        assert queue.look().may_draft
        queue.publish(0, NEXT + i, GUESS, 1, 0.1)
        assert queue.look().may_draft is may_draft
    queue.commit([3], 0)
    assert queue.look().may_draft, "in a new epoch none of them counts"


def test_a_decode_brings_no_candidate_once_the_target_has_written_the_token_that_it_makes() -> None:
    """Otherwise a slow draft is waited for, one decode after the other."""
    queue, remote = make_queue(), opened()
    remote.order(1, 0.0)
    queue.begin()
    for each in (queue, remote):
        assert not each.look().is_stale
        each.commit([GUESS.token], 0)
        assert each.look().is_stale
    assert receive(remote, NEXT)
    assert not remote.look().is_stale, "it makes the next one"


def test_an_order_has_what_is_new_and_whether_to_continue() -> None:
    queue = opened(n_ahead=1)
    assert queue.order(1, 0.0) == Text(1, 0, 0, PROMPT, True, ahead=Ahead.of(as_far_as(1)))
    assert queue.order(1, 0.0) is None
    assert receive(queue)
    assert queue.order(1, 0.0) == Text(1, 0, NEXT, [], False)
    queue.commit([GUESS.token], 0)
    queue.commit([3], 0)
    assert queue.order(1, 0.0) == Text(1, 0, NEXT, [GUESS.token, 3], True)
    assert receive(queue, NEXT + 2)
    queue.commit([3], 0)
    queue.allow(as_far_as(0))
    assert queue.order(1, 0.0) == Text(1, 1, NEXT + 2, [3], False)
    queue.commit([4], 0)
    assert queue.order(1, 0.0) is None, "an idle draft is told nothing"
    queue.allow(as_far_as(1))
    assert queue.order(1, 0.0) == Text(1, 1, NEXT + 3, [4], True)


@pytest.mark.parametrize(("is_stale", "most"), [(False, 6), (True, 20)])
def test_the_number_of_tokens_of_a_remote_draft_is_limited(is_stale: bool, most: int) -> None:
    queue = opened()
    if is_stale:
        receive(queue)
        queue.look()
        queue.commit([3], 0)
    for i in range(100):
        receive(queue, NEXT + i * (not is_stale))
    state = queue.look()
    assert 0 < len(state.drafted) <= most
    assert len(state.candidates) == (0 if is_stale else 6)


# Outcomes

OUTCOME = Outcome(NEXT, 5)


def preparing(n_ahead: int = 6) -> CandidateQueue:
    """One candidate is pending; other sequences may be continued."""
    queue = make_queue()
    queue.publish(0, NEXT, GUESS, 1, 0.1)
    queue.look()
    queue.allow(Lookahead(n_ahead, 0.0, CERTAIN, 4, RANKS))
    return queue


@pytest.mark.parametrize(("tokens", "is_useless"), [([7], False), ([5], False), ([6], True), ([6, 5], True)])
@pytest.mark.parametrize("on_chain", [True, False])
def test_a_decode_is_of_use_if_it_continues_what_came_true(tokens: list[int], is_useless: bool, on_chain: bool) -> None:
    queue = preparing()
    queue.begin()
    queue.continues([OUTCOME], on_chain=on_chain)
    state = queue.look()
    assert state.decode is not None
    assert (state.is_stale, state.decode.n_sequences) == (not on_chain, 1 + on_chain)
    _, found = queue.commit(tokens, 1)
    assert found is (is_useless or (tokens == [7] and not on_chain))


def test_a_verification_wakes_a_draft_that_has_drafted_enough() -> None:
    queue = preparing(n_ahead=0)
    queue.verifies(1)
    assert queue.wait_for_room()
    update = queue.begin()
    assert (update.n_verified, update.may_draft, update.chain) == (NEXT + 1, False, (GUESS,))
    queue.continues([OUTCOME], on_chain=False)
    queue.publish(0, NEXT + 1, None, 1, 0.1, [(OUTCOME, NEXT + 1, Candidate(8, 1.0))])
    assert queue.wait_for_room(), "it has more to do"
    queue.commit([7], 1)
    assert queue.begin().n_verified == 0


def test_the_late_scores_of_one_text_are_not_counted_in_the_next() -> None:
    draft = begun(FakeContext())
    text = make_text()
    draft.queue.open()
    draft.queue.commit([5], 0)
    draft.queue.publish(0, NEXT, Candidate(5, 1.0), 1, 0.1)  # for a position that is accepted
    draft.begin(text)
    draft.commit([Result((6,), draft="draft")])
    assert draft.estimates.acceptance.n_scored == 0


def test_a_step_waits_for_a_remote_draft_no_longer_than_a_decode_and_a_tenth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be slow for unknown reasons."""
    clock, waited = ManualClock(), list[float]()
    draft = RemoteDraft(RemoteDrafts(), "far", "far", lambda: None)
    draft.estimates.target.alone.add(1, 0.3)
    draft._connect(TokenSequence(PROMPT, N_VOCAB), Recorder(clock))
    monkeypatch.setattr(draft._queue, "wait", lambda _, seconds: waited.append(seconds))
    for passed_s in (0.0, 0.25, 0.25):
        clock.time += passed_s
        draft.wait(10.0)
    draft.wait(0.05)
    assert waited == [pytest.approx(0.4), pytest.approx(0.15), pytest.approx(-0.1), pytest.approx(-0.1)]


def test_an_order_says_what_is_verified_also_to_a_draft_that_may_not_continue_its_chain() -> None:
    queue = opened(n_ahead=1)
    queue.allow(Lookahead(1, 0.0, CERTAIN, 2, RANKS))
    queue.order(1, 0.0)
    assert receive(queue)
    assert queue.order(1, 0.0) == Text(1, 0, NEXT, [], False)
    queue.verifies(1)
    assert queue.order(1, 0.0) == Text(1, 0, NEXT, [], False, n_verified=NEXT + 1)
    assert queue.order(1, 0.0) is None
    queue.commit([GUESS.token, 3], 1)
    assert queue.order(1, 0.0) == Text(1, 0, NEXT, [GUESS.token, 3], True)


def test_a_draft_is_told_to_go_further_before_the_lead_waits_for_that() -> None:
    """It has paused where the last order ended."""
    queue = opened(n_ahead=1)
    queue.order(1, 0.0)
    assert receive(queue)
    queue.allow(as_far_as(2))
    assert queue.order(1, 0.0) == Text(1, 0, NEXT, [], True, ahead=Ahead.of(as_far_as(2)))
    queue.allow(as_far_as(3))
    assert queue.order(1, 0.0) is None, "it continues anyway"


def test_a_draft_that_had_to_pause_is_expected_again_when_it_may_continue() -> None:
    """However long ago it made its last token: the target's decode was long."""
    draft, clock = RemoteDraft(RemoteDrafts(), "far", "far", lambda: None), ManualClock()
    draft._connect(TokenSequence(PROMPT, N_VOCAB), Recorder(clock))
    queue, costs = draft._queue, draft.estimates.costs
    costs.add_latency(1.0)
    costs.concurrent.add(0.1)
    queue.open()
    queue.allow(as_far_as(1))
    queue.order(1, 1.0)
    assert receive(queue)
    queue.order(1, 1.0)
    clock.time += 10.0
    queue.commit([GUESS.token, 3], 1)
    queue.order(1, 1.0)
    assert draft._next_s(queue.look()) == pytest.approx(1.1)


@pytest.mark.parametrize(("right", "expected_s"), [(5, 0.1), (2, 1.1)], ids=["prepared", "not prepared"])
def test_the_next_token_after_an_outcome_that_was_prepared_needs_no_round_trip(right: int, expected_s: float) -> None:
    """The worker is making it when the verdict is sent."""
    draft = RemoteDraft(RemoteDrafts(), "far", "far", lambda: None)
    draft._connect(TokenSequence(PROMPT, N_VOCAB), Recorder(ManualClock()))
    queue, costs = draft._queue, draft.estimates.costs
    costs.add_latency(1.0)
    costs.concurrent.add(0.1)
    costs.concurrent.add(0.1, n_sequences=2)
    queue.open()
    queue.allow(Lookahead(6, 0.0, CERTAIN, 2, RANKS))
    queue.order(1, 1.0)
    assert receive(queue)
    queue.verifies(1)
    follows = (Outcome(NEXT, 5), NEXT + 1, GUESS)
    assert queue.offer(0, NEXT + 1, GUESS, NEXT, Drafted(1, 0.1, 2), [follows])
    queue.commit([right], 1)
    queue.order(1, 1.0)
    assert [each.token for each in queue.look().candidates] == ([GUESS.token] if right == 5 else [])
    assert draft._next_s(queue.look()) == pytest.approx(expected_s)

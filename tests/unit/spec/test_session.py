from hypothesis import given
from hypothesis import strategies as st

from duo.spec.session import Contradiction, Session
from duo.spec.types import Guess, Outcome


def session(*accepted: int) -> Session:
    return Session(accepted or (1,), n_vocab=10)


def test_candidates_follow_the_accepted_tokens() -> None:
    made = session(1, 2)
    assert made.offer(0, 2, Guess(3, 0.5))
    assert made.offer(0, 3, Guess(4, 0.25))
    assert made.propose().candidates(5).tokens == (3, 4)
    assert made.confidences() == [0.5, 0.25]
    assert made.propose().candidates(1).tokens == (3,)
    assert made.n_pending == 2
    assert made.commit([3]) == [(0.5, True)]
    assert made.epoch == 0
    assert made.propose().candidates(9).tokens == (4,)


def test_a_rejection_drops_all_candidates_and_begins_an_epoch() -> None:
    made = session()
    for position, token in enumerate([5, 6, 7], 1):
        made.offer(0, position, Guess(token, float(position)))
    # Every candidate up to the wrong one is scored, verified or not; those after it had a wrong prefix.
    assert made.commit([5, 9]) == [(1.0, True), (2.0, False)]
    assert (made.epoch, made.n_pending, made.accepted) == (1, 0, [1, 5, 9])


def test_candidates_of_another_epoch_position_or_vocabulary_are_dropped() -> None:
    made = session()
    made.offer(0, 1, Guess(5, 0.0))
    made.commit([6])
    for epoch, position, token, why in (
        (0, 2, 3, "an earlier epoch"),
        (1, 3, 3, "a gap"),
        (2, 2, 10, "beyond the vocabulary"),
        (2, 2, -1, "no token"),
        (2, 1, 5, "the target wrote something else there"),
    ):
        assert not made.offer(epoch, position, Guess(token, 0.0)), why
    assert made.n_pending == 0


def test_a_late_candidate_is_scored_and_not_kept() -> None:
    made = session()
    made.commit([6])
    assert made.offer(0, 1, Guess(6, 0.7))
    assert not made.offer(0, 1, Guess(5, 0.3))
    assert made.n_pending == 0
    assert made.commit([2]) == [(0.7, True), (0.3, False)]


def test_candidates_with_a_wrong_prefix_are_stale_until_the_draft_knows_the_text() -> None:
    late, pending = session(), session()
    late.commit([6])
    assert not late.offer(0, 1, Guess(5, 0.0), n_known=1)
    pending.offer(0, 1, Guess(5, 0.0), n_known=1)
    pending.commit([6])
    for made in (late, pending):
        assert not made.offer(0, 2, Guess(5, 0.0), n_known=1), "it follows the wrong one"
        assert made.offer(0, 2, Guess(5, 0.0), n_known=2), "it was made when the right one was known"
    assert late.epoch == 0


def test_a_gap_begins_an_epoch_once_and_a_duplicate_does_not() -> None:
    made = session()
    made.offer(0, 1, Guess(5, 0.0), n_known=1)
    assert not made.offer(0, 1, Guess(5, 0.0), n_known=1)
    assert made.epoch == 0
    for position in (3, 4):
        assert not made.offer(0, position, Guess(5, 0.0), n_known=1)
        assert made.epoch == 1
    assert made.propose().candidates(9).tokens == (5,), "what was right stays"


def test_candidates_of_a_remote_draft_are_taken_in_the_order_in_which_they_were_made() -> None:
    made = session()
    made.commit([6, 7, 8])
    assert made.offer(0, 2, Guess(7, 0.5), n_known=2)
    assert not made.offer(0, 1, Guess(6, 0.5), n_known=1), "it is older"
    assert not made.offer(0, 2, Guess(7, 0.5), n_known=2), "a duplicate"
    assert not made.offer(0, 1, Guess(6, 0.5), n_known=2), "that was known"
    assert made.commit([9]) == [(0.5, True)]


def test_nothing_is_left_of_a_draft_that_another_one_replaces() -> None:
    made = session()
    made.commit([6])
    made.offer(0, 1, Guess(6, 0.7))  # late
    made.offer(0, 2, Guess(5, 0.0))
    made.drop()
    assert made.n_pending == 0
    assert not made.offer(0, 2, Guess(5, 0.0))
    assert made.commit([5]) == []


def test_with_rejection_sampling_only_verified_candidates_are_scored() -> None:
    made = Session([1], n_vocab=10, judges_all=False)
    for position, token in enumerate([5, 6, 7], 1):
        made.offer(0, position, Guess(token, float(position)))
    assert made.commit([5, 6], n_verified=1) == [(1.0, True)]
    made.offer(0, 1, Guess(5, 0.5))
    assert made.commit([8]) == [], "neither late ones"


@given(st.data())
def test_the_text_is_what_was_committed_whatever_is_offered(data: st.DataObject) -> None:
    """Random offers and commits: pending candidates always continue the text."""
    made, text = Session([0], n_vocab=3), [0]
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.booleans()):
            position = len(text) + data.draw(st.integers(-2, 4))
            made.offer(data.draw(st.integers(0, 3)), max(0, position), Guess(data.draw(st.integers(-1, 3)), 0.0))
        else:
            candidates = made.propose().candidates(data.draw(st.integers(0, 3))).tokens
            n_accepted = data.draw(st.integers(0, len(candidates)))
            tokens = [*candidates[:n_accepted], data.draw(st.integers(0, 2))]
            pending, epoch = made.propose().candidates(99).tokens, made.epoch
            made.commit(tokens)
            text += tokens
            agrees = all(a == b for a, b in zip(tokens, pending, strict=False))
            assert made.propose().candidates(99).tokens == (pending[len(tokens) :] if agrees else ())
            assert made.epoch == epoch + (not agrees)
        assert made.accepted == text


def test_a_local_draft_replaces_a_pending_candidate_and_what_follows() -> None:
    """Of a draft with another vocabulary, the next token may change those before it."""
    made = session(1)
    for position, token in enumerate([5, 6, 7], 1):
        made.offer(0, position, Guess(token, 0.5))
    assert made.offer(0, 2, Guess(8, 0.25))
    assert (made.propose().candidates(9).tokens, made.confidences()) == ((5, 8), [0.5, 0.25])
    assert made.offer(0, 3, Guess(9, 0.5))
    assert made.epoch == 0
    assert made.commit([5, 8]) == [(0.5, True), (0.25, True)], "what was replaced is not scored"
    assert made.propose().candidates(9).tokens == (9,)


# Outcomes


def prepared() -> Session:
    """Two candidates, and tokens that continue two outcomes."""
    made = session()
    for position, (token, alternatives) in enumerate([(5, (8, 9)), (6, (7,))], 1):
        assert made.offer(0, position, Guess(token, 1.0, alternatives=alternatives))
    assert made.prepare(0, Outcome(1, 8), 2, Guess(3, 0.5))
    assert made.prepare(0, Outcome(1, 8), 3, Guess(4, 0.25))
    assert made.prepare(0, Outcome(2, 7), 3, Guess(2, 0.5))
    return made


def test_when_an_outcome_comes_true_its_tokens_are_the_candidates() -> None:
    made = prepared()
    assert made.commit([8], 2) == [(1.0, False)]
    assert made.propose().candidates(9).tokens == (3, 4)
    assert (made.epoch, made.came_true) == (1, Outcome(1, 8))
    assert made.contradictions == [Contradiction(0, 0, True)]
    assert made.prepare(0, Outcome(1, 8), 4, Guess(5, 0.5)), "its decode had begun before"
    assert made.offer(1, 5, Guess(6, 0.5))
    assert made.propose().candidates(9).tokens == (3, 4, 5, 6)


def test_a_token_that_was_no_alternative() -> None:
    made = prepared()
    made.commit([2], 2)
    assert (made.n_pending, made.contradictions) == (0, [Contradiction(0, -1, False)])
    for outcome in (Outcome(1, 8), Outcome(2, 7)):
        assert not made.prepare(0, outcome, outcome.position + 1, Guess(1, 0.5)), outcome


def test_outcomes_of_later_positions_outlive_a_commit() -> None:
    made = prepared()
    made.commit([5])
    assert not made.prepare(0, Outcome(1, 8), 4, Guess(1, 0.5)), "it cannot come true any more"
    made.commit([7])
    assert made.propose().candidates(9).tokens == (2,)


def test_an_outcome_does_not_outlive_two_epochs() -> None:
    made = prepared()
    made.commit([8])
    made.commit([9])
    assert not made.prepare(0, Outcome(1, 8), 4, Guess(5, 0.5))
    made = prepared()
    made.drop()
    assert not made.prepare(0, Outcome(1, 8), 4, Guess(5, 0.5))
    assert made.came_true is None

from hypothesis import given
from hypothesis import strategies as st

from duo.spec.session import Session
from duo.spec.types import Guess


def test_candidates_follow_the_accepted_tokens() -> None:
    session = Session([1, 2], n_vocab=10)
    assert session.offer(0, 2, Guess(3, 0.5))
    assert session.offer(0, 3, Guess(4, 0.25))
    candidates = session.candidates(5)
    assert candidates.tokens == (3, 4)
    assert session.confidences() == [0.5, 0.25]
    assert session.candidates(1).tokens == (3,)
    assert session.n_pending == 2


def test_a_confirmed_candidate_leaves_and_the_rest_stays() -> None:
    session = Session([1], n_vocab=10)
    session.offer(0, 1, Guess(5, 0.1))
    session.offer(0, 2, Guess(6, 0.2))
    assert session.commit([5]) == [(0.1, True)]
    assert session.epoch == 0
    assert session.candidates(9).tokens == (6,)


def test_a_contradiction_drops_all_and_begins_an_epoch() -> None:
    session = Session([1], n_vocab=10)
    for position, token in enumerate([5, 6, 7], 1):
        session.offer(0, position, Guess(token, float(position)))
    # Every candidate up to the wrong one is scored, verified or not; those after it stood on a wrong premise.
    assert session.commit([5, 9]) == [(1.0, True), (2.0, False)]
    assert session.epoch == 1
    assert session.n_pending == 0
    assert session.accepted == [1, 5, 9]


def test_stale_and_useless_guesses_are_dropped() -> None:
    session = Session([1], n_vocab=10)
    session.offer(0, 1, Guess(5, 0.0))
    session.commit([6])
    assert not session.offer(0, 2, Guess(3, 0.0)), "an earlier epoch"
    assert not session.offer(1, 3, Guess(3, 0.0)), "a gap"
    assert not session.offer(2, 2, Guess(10, 0.0)), "beyond the vocabulary"
    assert not session.offer(2, 2, Guess(-1, 0.0)), "no token"
    assert not session.offer(2, 1, Guess(5, 0.0)), "the target wrote something else there"
    assert session.n_pending == 0


def test_a_late_guess_is_scored_and_not_kept() -> None:
    session = Session([1], n_vocab=10)
    session.commit([6])
    assert session.offer(0, 1, Guess(6, 0.7))
    assert not session.offer(0, 1, Guess(5, 0.3))
    assert session.n_pending == 0
    assert session.commit([2]) == [(0.7, True), (0.3, False)]


@given(st.data())
def test_whatever_is_offered_the_text_is_what_was_committed(data: st.DataObject) -> None:
    """Random offers and commits: pending candidates always continue the text, and the text is the target's."""
    session = Session([0], n_vocab=3)
    text = [0]
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.booleans()):
            position = len(text) + data.draw(st.integers(-2, 4))
            session.offer(data.draw(st.integers(0, 3)), max(0, position), Guess(data.draw(st.integers(-1, 3)), 0.0))
        else:
            k = data.draw(st.integers(0, 3))
            candidates = session.candidates(k).tokens
            n_accepted = data.draw(st.integers(0, len(candidates)))
            tokens = [*candidates[:n_accepted], data.draw(st.integers(0, 2))]
            pending, epoch = session.candidates(99).tokens, session.epoch
            session.commit(tokens)
            text += tokens
            agrees = all(a == b for a, b in zip(tokens, pending, strict=False))
            assert session.candidates(99).tokens == (pending[len(tokens) :] if agrees else ())
            assert session.epoch == epoch + (not agrees)
        assert session.accepted == text


def test_what_builds_on_a_late_guess_that_was_wrong_is_stale() -> None:
    session = Session([1], n_vocab=10)
    session.commit([6])
    assert not session.offer(0, 1, Guess(5, 0.0), n_known=1)
    assert not session.offer(0, 2, Guess(5, 0.0), n_known=1), "it builds on the wrong one"
    assert session.offer(0, 2, Guess(5, 0.0), n_known=2), "it was made when the right one was known"
    assert session.epoch == 0


def test_what_was_made_before_a_contradiction_was_known_is_stale() -> None:
    session = Session([1], n_vocab=10)
    session.offer(0, 1, Guess(5, 0.0), n_known=1)
    session.commit([6])
    assert not session.offer(0, 2, Guess(5, 0.0), n_known=1)
    assert session.offer(0, 2, Guess(5, 0.0), n_known=2)


def test_a_gap_begins_an_epoch_once_and_a_guess_that_is_there_does_not() -> None:
    session = Session([1], n_vocab=10)
    session.offer(0, 1, Guess(5, 0.0), n_known=1)
    assert not session.offer(0, 1, Guess(5, 0.0), n_known=1)
    assert session.epoch == 0
    assert not session.offer(0, 3, Guess(5, 0.0), n_known=1)
    assert not session.offer(0, 4, Guess(5, 0.0), n_known=1)
    assert session.epoch == 1
    assert session.candidates(9).tokens == (5,), "what was right stays"


def test_when_another_draft_takes_over_nothing_is_left_of_the_first() -> None:
    session = Session([1], n_vocab=10)
    session.offer(0, 1, Guess(5, 0.0))
    session.drop()
    assert session.n_pending == 0
    assert not session.offer(0, 1, Guess(5, 0.0))
    assert session.commit([5]) == []


def test_guesses_of_a_remote_draft_are_taken_in_the_order_in_which_they_were_made() -> None:
    session = Session([1], n_vocab=10)
    session.commit([6, 7, 8])
    assert session.offer(0, 2, Guess(7, 0.5), n_known=2)
    assert not session.offer(0, 1, Guess(6, 0.5), n_known=1), "it is older"
    assert not session.offer(0, 2, Guess(7, 0.5), n_known=2), "it came before"
    assert not session.offer(0, 1, Guess(6, 0.5), n_known=2), "that was known"
    assert session.commit([9]) == [(0.5, True)]

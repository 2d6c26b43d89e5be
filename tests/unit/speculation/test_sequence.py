import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import MAX_BRANCHES
from duo.speculation.acceptance import MAX_DEEP
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Candidate, Outcome


def sequence(*, judges_all: bool = True) -> TokenSequence:
    return TokenSequence((1,), 10, judges_all=judges_all)


def drafted(made: TokenSequence, *tokens: int) -> TokenSequence:
    """With these candidates after one accepted token, of confidence 1, 2, …"""
    for position, token in enumerate(tokens, 1):
        assert made.offer(made.epoch, position, Candidate(token, float(position)))
    return made


def pending(made: TokenSequence) -> list[int]:
    return [candidate.token for candidate in made.pending]


def test_candidates_of_another_epoch_position_or_vocabulary_are_dropped() -> None:
    made = drafted(sequence(), 5)
    made.commit([6])
    for epoch, position, token, why in (
        (0, 2, 3, "an earlier epoch"),
        (1, 3, 3, "a gap"),
        (2, 2, 10, "beyond the vocabulary"),
        (2, 2, -1, "no token"),
        (2, 1, 5, "the target wrote something else there"),
    ):
        assert not made.offer(epoch, position, Candidate(token, 0.0)), why
    assert not made.pending


def test_a_late_candidate_is_scored_and_not_kept() -> None:
    made = sequence()
    made.commit([6])
    assert made.offer(0, 1, Candidate(6, 0.7))
    assert not made.offer(0, 1, Candidate(5, 0.3))
    assert not made.pending
    assert made.commit([2]) == [(0.7, True), (0.3, False)]


def test_candidates_with_a_wrong_prefix_are_stale_until_the_draft_knows_the_text() -> None:
    late, early = sequence(), sequence()
    late.commit([6])
    assert not late.offer(0, 1, Candidate(5, 0.0), n_known=1)
    early.offer(0, 1, Candidate(5, 0.0), n_known=1)
    early.commit([6])
    for made in (late, early):
        assert not made.offer(0, 2, Candidate(5, 0.0), n_known=1), "it follows the wrong one"
        assert made.offer(0, 2, Candidate(5, 0.0), n_known=2), "it was made when the right one was known"
    assert late.epoch == 0


def test_candidates_of_a_remote_draft_are_taken_in_the_order_in_which_they_were_made() -> None:
    made = sequence()
    made.commit([6, 7, 8])
    assert made.offer(0, 2, Candidate(7, 0.5), n_known=2)
    for position, n_known, why in ((1, 1, "it is older"), (2, 2, "a duplicate"), (1, 2, "that was known")):
        assert not made.offer(0, position, Candidate(made.accepted[position], 0.5), n_known), why
    assert made.commit([9]) == [(0.5, True)]
    made.offer(0, 5, Candidate(5, 0.0), n_known=5)
    assert not made.offer(0, 5, Candidate(5, 0.0), n_known=5)
    assert made.epoch == 0, "a duplicate begins no epoch, a gap one"
    for position in (7, 8):
        assert not made.offer(0, position, Candidate(5, 0.0), n_known=5)
        assert (made.epoch, pending(made)) == (1, [5])


def test_with_rejection_sampling_only_verified_candidates_are_scored() -> None:
    made = drafted(sequence(judges_all=False), 5, 6, 7)
    assert made.commit([5, 6], n_verified=1) == [(1.0, True)]
    made.offer(0, 1, Candidate(5, 0.5))
    assert made.commit([8]) == [], "neither late ones"


def test_a_local_draft_replaces_a_pending_candidate_and_what_follows() -> None:
    """Of a draft with another vocabulary, the next token may change those before it."""
    made = drafted(sequence(), 5, 6, 7)
    assert made.offer(0, 2, Candidate(8, 0.25))
    assert made.offer(0, 3, Candidate(9, 0.5))
    assert (made.epoch, pending(made)) == (0, [5, 8, 9])
    assert made.commit([5, 8]) == [(1.0, True), (0.25, True)], "what was replaced is not scored"


@given(st.data())
def test_the_text_is_what_was_committed_whatever_is_offered(data: st.DataObject) -> None:
    """Random offers and commits: pending candidates always continue the text."""
    made, text = TokenSequence([0], n_vocab=3), [0]
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.booleans()):
            position = len(text) + data.draw(st.integers(-2, 4))
            made.offer(data.draw(st.integers(0, 3)), max(0, position), Candidate(data.draw(st.integers(-1, 3)), 0.0))
        else:
            before, epoch = pending(made), made.epoch
            tokens = [*before[: data.draw(st.integers(0, 3))], data.draw(st.integers(0, 2))]
            made.commit(tokens)
            text += tokens
            agrees = all(a == b for a, b in zip(tokens, before, strict=False))
            assert pending(made) == (before[len(tokens) :] if agrees else [])
            assert made.epoch == epoch + (not agrees)
        assert made.accepted == text


def prepared() -> TokenSequence:
    """Two candidates, and tokens that continue two outcomes."""
    made = sequence()
    for position, (token, alternatives) in enumerate([(5, (8, 9)), (6, (7,))], 1):
        assert made.offer(0, position, Candidate(token, 1.0, alternatives=alternatives))
    for outcome, position, token in ((Outcome(1, 8), 2, 3), (Outcome(1, 8), 3, 4), (Outcome(2, 7), 3, 2)):
        assert made.prepare(0, outcome, position, Candidate(token, 0.5))
    return made


def test_when_an_outcome_comes_true_its_tokens_are_the_candidates() -> None:
    made = prepared()
    assert made.commit([8], 2) == [(1.0, False)]
    assert (made.epoch, made.came_true, pending(made)) == (1, Outcome(1, 8), [3, 4])
    assert made.contradictions == [(0, 0, True)]
    assert made.prepare(0, Outcome(1, 8), 4, Candidate(5, 0.5)), "its decode had begun before"
    assert made.offer(1, 5, Candidate(6, 0.5))
    assert pending(made) == [3, 4, 5, 6]
    made.commit([9])
    assert not made.prepare(0, Outcome(1, 8), 4, Candidate(5, 0.5)), "two epochs later"


def test_outcomes_that_cannot_come_true_are_dropped() -> None:
    made = prepared()
    made.commit([2], 2)
    assert (made.pending, made.contradictions) == ([], [(0, -1, False)])
    for outcome in (Outcome(1, 8), Outcome(2, 7)):
        assert not made.prepare(0, outcome, outcome.position + 1, Candidate(1, 0.5)), outcome
    made = prepared()
    made.commit([5])
    assert not made.prepare(0, Outcome(1, 8), 4, Candidate(1, 0.5))
    made.commit([7])
    assert pending(made) == [2], "that of a later position outlives a commit"


def far(*tokens: int) -> TokenSequence:
    """With these candidates of a remote draft, which knows one accepted token."""
    made = sequence()
    for position, token in enumerate(tokens, 1):
        assert made.offer(0, position, Candidate(token, 1.0), n_known=1)
    return made


def test_what_a_remote_draft_prepares_must_contradict_a_pending_candidate_and_know_the_text() -> None:
    made = far(5, 6)
    for epoch, at, position, n_known, is_taken, why in (
        (0, 2, 3, 1, True, "it contradicts the second one"),
        (0, 2, 3, 1, False, "a second token for the same position"),
        (0, 2, 5, 1, False, "a gap"),
        (0, 3, 4, 1, False, "there is no candidate that it contradicts"),
        (1, 1, 2, 1, False, "a later epoch"),
        (0, 1, 2, 0, False, "it does not know the prompt"),
    ):
        assert made.prepare(epoch, Outcome(at, 8), position, Candidate(4, 1.0), n_known) is is_taken, why
    assert not made.prepare(0, Outcome(1, 8), 2, Candidate(10, 1.0), 1), "beyond the vocabulary"
    made.commit([5, 8])
    assert pending(made) == [4]


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
def test_what_a_remote_draft_has_prepared_for_the_outcome_that_came_true_is_taken_when_it_comes(
    *, is_late: bool
) -> None:
    """Also if the candidate that it contradicts comes after the target's token."""
    made = sequence() if is_late else far(5)
    made.commit([8])
    if is_late:
        assert not made.offer(0, 1, Candidate(5, 1.0), n_known=1)
    for position, token in ((2, 4), (3, 2)):
        assert not made.prepare(0, Outcome(1, 7), position, Candidate(3, 1.0), 1), "another outcome"
        assert made.prepare(0, Outcome(1, 8), position, Candidate(token, 1.0), 1)
    assert made.offer(made.epoch, 4, Candidate(7, 1.0), n_known=2), "the draft goes on from there"
    assert pending(made) == [4, 2, 7]
    made.commit([3, 7, 9])
    for outcome, position in ((Outcome(1, 8), 3), (Outcome(4, 9), 5)):
        assert not made.prepare(made.epoch, outcome, position, Candidate(3, 1.0), 1), "it builds on what was wrong"


def test_what_is_prepared_is_bounded() -> None:
    made, n = far(*9 * [5]), 0
    for token in range(10):
        for outcome in (Outcome(at, token) for at in range(1, 10)):
            for position in range(outcome.position + 1, outcome.position + 100):
                n += made.prepare(0, outcome, position, Candidate(1, 1.0), 1)
    assert n == MAX_BRANCHES * MAX_DEEP
    made = far(5)
    made.commit([8])
    assert sum(made.prepare(0, Outcome(1, 8), at, Candidate(1, 1.0), 1) for at in range(2, 100)) == MAX_DEEP, "late"


@given(data=st.data())
def test_whatever_a_remote_draft_prepares_the_text_is_what_was_committed(data: st.DataObject) -> None:
    made, small, token = sequence(), st.integers(0, 6), st.integers(-1, 11)
    text = [1]
    for _ in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["offer", "prepare", "prepare", "commit", "restart"]))
        candidate, position, n_known = Candidate(data.draw(token), 1.0), len(text) + data.draw(small) - 2, len(text)
        epoch = max(0, made.epoch - data.draw(st.integers(-1, 2)))
        n_known -= min(n_known, data.draw(st.integers(0, 2)))
        if what == "offer":
            made.offer(epoch, position, candidate, n_known)
        elif what == "prepare":
            made.prepare(epoch, Outcome(max(0, position - 1), data.draw(token)), position, candidate, n_known)
        elif what == "commit":
            text.append(data.draw(st.integers(0, 9)))
            made.commit([text[-1]])
        else:
            made.restart()
        assert made.accepted == text
        assert all(0 <= each.token < 10 for each in made.pending)

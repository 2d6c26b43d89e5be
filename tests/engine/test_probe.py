"""Probes: what a draft that does not guess says to the text, and that it can guess again afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from duo.engine.drafter import Drafter
from duo.engine.queue import CandidateQueue
from duo.spec.schedule import Schedule
from tests.engine.helpers import PROMPT, make_drafter, make_queue
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after

N = 40
TEXT = text_after(PROMPT, N)


def after_the_last(prefix: Sequence[int]) -> int:
    """Looks back one token only: what stands before a piece of text makes no difference."""
    return (7 * prefix[-1] + 7) % N_VOCAB


def scores_of(text: Sequence[int], n: int) -> list[tuple[float, bool]]:
    """What after_the_last scores for the last `n` tokens."""
    pairs = list(pairwise(text))[-n:]
    return [(5.0, after_the_last([before]) == right) for before, right in pairs]


class Probed:
    """A draft beside a text of `n` tokens after the prompt."""

    def __init__(self, draft: FakeContext, n: int) -> None:
        self.draft = draft
        self.policy = Eager(9, 9, Schedule.SYNC)
        self.queue: CandidateQueue = make_queue(self.policy)
        self.drafter: Drafter = make_drafter(draft, self.queue)
        self.write(n)

    @property
    def scores(self) -> list[tuple[float, bool]]:
        return list(self.policy.scores)

    def write(self, n: int) -> None:
        """The target writes so many more."""
        done = len(self.queue.accepted_from(len(PROMPT)))
        self.queue.commit(tuple(TEXT[done : done + n]))

    def goes_on_right(self) -> None:
        """The next guesses are those of a draft that has read everything."""
        for _ in range(3):
            self.drafter.step()
        text = self.queue.accepted_from(0)
        expected: list[int] = []
        for _ in range(3):
            expected.append(self.draft.choose(text + expected))
        assert list(self.queue.take(100).tokens[:3]) == expected
        assert self.draft.tokens == text + expected[:2]


def test_all_that_is_new_is_read_once_and_judged() -> None:
    probed = Probed(FakeContext(after_the_last, n_batch=100), 9)
    probed.drafter.probe(64)
    assert probed.draft.batches == [3 + 9]
    assert probed.scores == scores_of(PROMPT + TEXT[:9], 9), "the prompt is nobody's guess"
    assert {right for _, right in probed.scores} == {True, False}, "the test can tell them apart"
    probed.write(6)
    probed.drafter.probe(64)
    assert probed.draft.batches == [12, 6]
    assert probed.scores[9:] == scores_of(PROMPT + TEXT[:15], 5)
    probed.goes_on_right()


@pytest.mark.parametrize("n_batch", [8, 100])
def test_of_a_long_text_the_end_is_read_and_half_of_it_judged(n_batch: int) -> None:
    probed = Probed(FakeContext(after_the_last, n_batch=n_batch), 30)
    n_read = min(10, n_batch)
    probed.drafter.probe(10)
    assert probed.draft.batches == [n_read]
    assert probed.scores == scores_of(PROMPT + TEXT[:30], n_read // 2)
    assert probed.draft.n_past == 0, "what it read is no beginning of the text"
    probed.goes_on_right()


def test_a_probe_continues_what_the_draft_has_read() -> None:
    """A draft whose guess depends on all tokens: it is right only if it has read all of them."""
    probed = Probed(FakeContext(n_batch=100), 4)
    for _ in range(3):
        probed.drafter.step()
    probed.write(20)
    n_before = len(probed.scores)
    probed.drafter.probe(64)
    assert probed.draft.tokens == PROMPT + TEXT[:24]
    assert probed.scores[n_before:] == [(5.0, True)] * len(probed.scores[n_before:])
    # Two of its three guesses had been read before.
    assert probed.draft.batches == [7, 1, 1, 18]
    probed.goes_on_right()


def test_wrong_guesses_are_forgotten_before_a_probe() -> None:
    probed = Probed(FakeContext(lambda prefix: next_token(prefix) if len(prefix) < 8 else 5, n_batch=100), 4)
    for _ in range(4):
        probed.drafter.step()
    probed.write(20)
    probed.drafter.probe(64)
    assert probed.draft.tokens == PROMPT + TEXT[:24]
    probed.goes_on_right()


def test_a_probe_while_guesses_are_pending_does_no_harm() -> None:
    probed = Probed(FakeContext(n_batch=100), 4)
    for _ in range(2):
        probed.drafter.step()
    probed.drafter.probe(64)
    assert probed.scores == [], "they will tell soon enough"
    probed.drafter.step()
    assert probed.queue.take(100).tokens == tuple(TEXT[4:7])


def test_a_text_of_one_token_says_nothing() -> None:
    probed = Probed(FakeContext(n_batch=100), 4)
    probed.drafter.step()
    probed.write(1)
    n_before = len(probed.scores)
    probed.drafter.probe(64)
    assert len(probed.scores) == n_before
    assert len(probed.draft.batches) == 1
    probed.goes_on_right()


def test_a_text_that_the_draft_cannot_read_is_not_read() -> None:
    probed = Probed(FakeContext(lambda _: 0, n_vocab=max(TEXT), n_batch=100), N)
    probed.drafter.probe(64)
    assert probed.draft.batches == []
    assert probed.scores == []


def test_a_draft_of_a_small_context_reads_the_end_of_the_text() -> None:
    probed = Probed(FakeContext(after_the_last, n_ctx=10, n_batch=100), 30)
    probed.drafter.probe(64)
    assert probed.draft.batches == [10]
    assert probed.scores == scores_of(PROMPT + TEXT[:30], 5)
    assert probed.drafter.step()
    assert probed.queue.take(100).tokens == (after_the_last(TEXT[:30]),)


def test_guesses_beyond_the_targets_vocabulary_are_cut() -> None:
    """The draft would rather say what the target cannot; what it says otherwise is token 0."""
    draft = FakeContext(lambda _: N_VOCAB + 2, n_vocab=N_VOCAB + 3, n_batch=100)
    probed = Probed(draft, 20)
    probed.drafter.probe(64)
    assert [right for _, right in probed.scores] == [token == 0 for token in TEXT[:20]]

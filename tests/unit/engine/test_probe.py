"""Probes: what a draft that does not guess says to the text, and that it can guess again afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from duo.engine.drafter import Probe
from duo.spec.schedule import Schedule
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after
from tests.unit.engine.helpers import PROMPT, begun

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
        self.local = begun(draft, Eager(9, 9, Schedule.SYNC))
        self.drafter = self.local.drafter
        self.write(n)

    @property
    def text(self) -> list[int]:
        return self.local.session.accepted

    def write(self, n: int) -> None:
        """The target writes so many more."""
        done = len(self.text) - len(PROMPT)
        self.local.commit(TEXT[done : done + n], None)

    def probe(self, n_tokens: int = 64) -> Probe:
        n_read = sum(self.draft.batches)
        found = self.drafter.probe(n_tokens, len(PROMPT))
        assert found.n_tokens == sum(self.draft.batches) - n_read
        assert found.seconds >= 0
        return found

    def goes_on_right(self) -> None:
        """The next guesses are those of a draft that has read everything."""
        for _ in range(3):
            self.drafter.step()
        expected: list[int] = []
        for _ in range(3):
            expected.append(self.draft.choose(self.text + expected))
        self.local.commit((), None)
        assert list(self.local.session.candidates(3).tokens) == expected
        assert self.draft.tokens == self.text + expected[:2]


def test_all_that_is_new_is_read_once_and_judged() -> None:
    probed = Probed(FakeContext(after_the_last, n_batch=100), 9)
    found = probed.probe()
    assert found.whole
    assert probed.draft.batches == [3 + 9]
    assert found.scores == scores_of(PROMPT + TEXT[:9], 9), "the prompt is nobody's guess"
    assert {right for _, right in found.scores} == {True, False}, "the test can tell them apart"
    probed.write(6)
    found = probed.probe()
    assert found.whole
    assert probed.draft.batches == [12, 6]
    assert found.scores == scores_of(PROMPT + TEXT[:15], 5)
    probed.goes_on_right()


@pytest.mark.parametrize("n_batch", [8, 100])
def test_of_a_long_text_the_end_is_read_and_half_of_it_judged(n_batch: int) -> None:
    probed = Probed(FakeContext(after_the_last, n_batch=n_batch), 30)
    n_read = min(10, n_batch)
    found = probed.probe(10)
    assert not found.whole
    assert probed.draft.batches == [n_read]
    assert found.scores == scores_of(PROMPT + TEXT[:30], n_read // 2)
    assert probed.draft.n_past == 0, "what it read is no beginning of the text"
    probed.goes_on_right()


def test_a_probe_continues_what_the_draft_has_read() -> None:
    """A draft whose guess depends on all tokens: it is right only if it has read all of them."""
    probed = Probed(FakeContext(n_batch=100), 4)
    for _ in range(3):
        probed.drafter.step()
    probed.write(20)
    found = probed.probe()
    assert found.whole
    assert probed.draft.tokens == PROMPT + TEXT[:24]
    assert found.scores == [(5.0, True)] * 17
    # Two of its three guesses had been read before.
    assert probed.draft.batches == [7, 1, 1, 18]
    probed.goes_on_right()


def test_wrong_guesses_are_forgotten_before_a_probe() -> None:
    probed = Probed(FakeContext(lambda prefix: next_token(prefix) if len(prefix) < 8 else 5, n_batch=100), 4)
    for _ in range(4):
        probed.drafter.step()
    probed.write(20)
    probed.probe()
    assert probed.draft.tokens == PROMPT + TEXT[:24]
    probed.goes_on_right()


def test_a_probe_while_guesses_are_pending_does_no_harm() -> None:
    probed = Probed(FakeContext(n_batch=100), 4)
    for _ in range(2):
        probed.drafter.step()
    assert probed.probe()[:2] == ([], 0), "they will tell soon enough"
    probed.drafter.step()
    probed.local.commit((), None)
    assert probed.local.session.candidates(100).tokens == tuple(TEXT[4:7])


def test_a_text_of_one_token_says_nothing() -> None:
    probed = Probed(FakeContext(n_batch=100), 4)
    probed.drafter.step()
    probed.write(1)
    assert probed.probe()[:2] == ([], 0)
    assert len(probed.draft.batches) == 1
    probed.goes_on_right()


def test_a_text_that_the_draft_cannot_read_is_not_read() -> None:
    probed = Probed(FakeContext(lambda _: 0, n_vocab=max(TEXT), n_batch=100), N)
    assert probed.probe()[:2] == ([], 0)
    assert probed.draft.batches == []


def test_a_draft_of_a_small_context_reads_the_end_of_the_text() -> None:
    probed = Probed(FakeContext(after_the_last, n_ctx=10, n_batch=100), 30)
    found = probed.probe()
    assert not found.whole
    assert probed.draft.batches == [10]
    assert found.scores == scores_of(PROMPT + TEXT[:30], 5)
    assert probed.drafter.step()
    probed.local.commit((), None)
    assert probed.local.session.candidates(100).tokens == (after_the_last(TEXT[:30]),)


def test_guesses_beyond_the_targets_vocabulary_are_cut() -> None:
    """The draft would rather say what the target cannot; what it says otherwise is token 0."""
    draft = FakeContext(lambda _: N_VOCAB + 2, n_vocab=N_VOCAB + 3, n_batch=100)
    probed = Probed(draft, 20)
    assert [right for _, right in probed.probe().scores] == [token == 0 for token in TEXT[:20]]

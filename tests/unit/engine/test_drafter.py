"""Drafter: steps, rollback and probes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from duo.config.model_config import ROWS
from duo.engine.drafter import Drafter, DraftUpdate
from duo.engine.recorder import Recorder
from duo.errors import DecodeAborted
from duo.speculation.modes import Schedule
from duo.speculation.sampling import Greedy
from duo.speculation.types import Candidate, Probe
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Side, begun, make_queue

N = 40
TEXT = text_after(PROMPT, N)
WRONG = [(token + 1) % N_VOCAB for token in TEXT]  # what the target does not write


def after_the_last(prefix: Sequence[int]) -> int:
    """Depends on the last token only: what was before a piece of text makes no difference."""
    return (7 * prefix[-1] + 7) % N_VOCAB


# Steps


def test_a_rejection_during_a_decode_rolls_back_only_what_was_wrong_or_cancels_it() -> None:
    context = FakeContext(n_batch=100)
    draft = begun(context, Eager(4, 9))
    for _ in range(5):
        draft.drafter.step()
    # While the sixth token is drafted, the target accepts three; then one more, and something else for the fifth.
    context.during = lambda: draft.wrote(*TEXT[:3])
    draft.drafter.step()
    context.during = lambda: draft.wrote(TEXT[3], WRONG[4])
    with pytest.raises(DecodeAborted):
        draft.drafter.step()
    context.during = lambda: None
    draft.drafter.step()
    assert context.batches == [len(PROMPT), *[1] * 7]
    assert context.tokens == [*PROMPT, *TEXT[:4], WRONG[4]]


@pytest.mark.parametrize(("cached", "batches"), [(PROMPT[:-1], [2, 1]), ([PROMPT[0], 9], [2, 2])])
def test_what_the_cache_holds_of_the_text_is_not_decoded_again(cached: list[int], batches: list[int]) -> None:
    context = FakeContext()
    context.decode(cached)
    drafter = Drafter(context, make_queue(), Greedy(), N_VOCAB, Recorder(), cached)
    assert drafter.step()
    assert context.batches == batches
    assert drafter.end() == context.tokens == PROMPT


# What others expect


@pytest.mark.parametrize(
    ("expected", "n_drafted", "n_read"),
    [
        (TEXT[:4], 5, 4),
        ([*TEXT[:2], WRONG[2], *TEXT[3:5]], 3, 5),
        (WRONG[:3], 1, 3),
        (TEXT[:9], 8, 7),
        ([*TEXT[:2], N_VOCAB], 1, 0),
    ],
    ids=["all is right", "the third is wrong", "the first is wrong", "no room in a batch", "not in the vocabulary"],
)
def test_what_is_expected_is_decoded_at_once_and_drafted_as_far_as_the_draft_would(
    expected: list[int], n_drafted: int, n_read: int
) -> None:
    context = FakeContext(n_vocab=N_VOCAB)
    draft = begun(context, Eager(9, 9, Schedule.SYNC))
    context.decode(PROMPT[:-1])
    draft.drafter._tokens = PROMPT[:-1]
    assert draft.drafter.step(expected)
    assert context.batches == [2, 1 + n_read]
    assert draft.drafter.end() == context.tokens, "what is wrong is no longer in the cache"
    for _ in range(9 - n_drafted):
        assert draft.drafter.step()
    draft.wrote()
    assert draft.pending == TEXT[:9]
    assert context.batches[2:] == [1] * (9 - n_drafted)
    assert draft.drafter.end() == context.tokens == [*PROMPT, *TEXT[:8]]


def test_no_more_is_expected_at_once_than_every_context_has_rows_for() -> None:
    """llama.cpp ends the process if more are asked for."""
    context = FakeContext(n_vocab=N_VOCAB, n_batch=100)
    draft = begun(context, Eager(64, 64, Schedule.SYNC))
    assert draft.drafter.step(TEXT[:39])
    draft.wrote()
    assert draft.pending == TEXT[:ROWS]
    assert context.batches == [len(PROMPT) + ROWS - 1]


# Probes


class Probed:
    """A draft in a text of `n` tokens after the prompt, of which it has drafted the first `n_drafted`."""

    def __init__(self, context: FakeContext, n: int, n_drafted: int = 0) -> None:
        self.context = context
        self.draft = begun(context, Eager(9, 9, Schedule.SYNC))
        self.write(min(n, 4))
        for _ in range(n_drafted):
            assert self.draft.drafter.step()
        self.write(n - 4)

    def write(self, n: int) -> None:
        """The target writes `n` more tokens."""
        done = len(self.draft._sequence.accepted) - len(PROMPT)
        self.draft.wrote(*TEXT[done : done + n] if n > 0 else [])

    def probe(self, n_tokens: int = 64) -> Probe:
        n_read = sum(self.context.batches)
        found = self.draft.drafter.probe(n_tokens, len(PROMPT))
        assert found.n_tokens == sum(self.context.batches) - n_read
        return found

    def expected(self, n: int) -> list[tuple[float, bool]]:
        """What after_the_last scores for the last `n` tokens."""
        text = self.draft._sequence.accepted
        return [(5.0, after_the_last([before]) == right) for before, right in list(pairwise(text))[-n:]]

    def continues(self) -> None:
        """The next candidates are those of a draft that has read everything."""
        text, expected = self.draft._sequence.accepted, list[int]()
        for _ in range(3):
            assert self.draft.drafter.step()
            expected.append(self.context.choose(text + expected))
        self.draft.wrote()
        assert self.draft.pending[:3] == expected
        assert self.context.tokens == text + expected[:2]


def test_a_probe_reads_all_that_is_new_and_scores_it() -> None:
    probed = Probed(FakeContext(after_the_last, n_batch=100), 9)
    found = probed.probe()
    assert found.whole
    assert found.scores == probed.expected(9), "without the prompt"
    assert {right for _, right in found.scores} == {True, False}, "the test can tell them apart"
    probed.write(6)
    assert probed.probe().scores == probed.expected(5)
    assert probed.context.batches == [3 + 9, 6]
    probed.continues()


@pytest.mark.parametrize("n_batch", [8, 100])
def test_a_probe_of_a_long_text_reads_its_end_and_scores_half_of_it(n_batch: int) -> None:
    probed = Probed(FakeContext(after_the_last, n_batch=n_batch), 30)
    n_read = min(10, n_batch)
    found = probed.probe(10)
    assert not found.whole
    assert probed.context.batches == [n_read]
    assert found.scores == probed.expected(n_read // 2)
    assert probed.context.n_past == 0, "what it read is not the beginning of the text"
    probed.continues()


@pytest.mark.parametrize(
    ("n_vocab", "n", "n_drafted"),
    [(N_VOCAB, 4, 2), (N_VOCAB, 5, 1), (max(TEXT), N, 0)],
    ids=["pending candidates", "one new token", "a token beyond the vocabulary"],
)
def test_a_text_that_tells_nothing_is_not_read(n_vocab: int, n: int, n_drafted: int) -> None:
    context = FakeContext(lambda prefix: next_token(prefix) % n_vocab, n_vocab=n_vocab, n_batch=100)
    assert Probed(context, n, n_drafted).probe()[:2] == ([], 0)
    assert len(context.batches) == n_drafted


# A draft with another vocabulary


def longer(*_: object) -> Candidate:
    return Candidate(7, 1.0)


@pytest.mark.parametrize(
    ("said", "candidates", "tokens", "batches"),
    [
        ([(0, [1, 2, 3]), (1, [4, 5], 1)], [(3, 8), (4, 10)], [1, 2, 4, 5], [3, 2]),
        ([(0, [1, 2, 3], 0, longer), (0, []), (0, [7])], [(2, 7), (3, 12), (4, 0)], [1, 2, 7, 12], [3, 1, 1]),
    ],
    ids=["what was told earlier", "the last token, by a longer one"],
)
def test_tokens_are_replaced(
    said: list[Any], candidates: list[tuple[int, int]], tokens: list[int], batches: list[int]
) -> None:
    context, side = FakeContext(lambda prefix: (prefix[-1] + 5) % N_VOCAB), Side(*(DraftUpdate(*one) for one in said))
    drafter = Drafter(context, side, Greedy(), N_VOCAB, Recorder())
    for _ in said:
        drafter.step()
        assert drafter.end() == context.tokens, "a later text relies on it"
    assert [(position, candidate.token) for position, candidate, *_ in side.offers] == candidates
    assert (context.tokens, context.batches) == (tokens, batches)

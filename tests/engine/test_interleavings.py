"""Whatever the order in which draft and target move, and whatever the draft guesses, the text is the target's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.target import generate
from duo.spec.sampling import Greedy
from duo.spec.session import Session
from tests.engine.helpers import PROMPT, make_drafter, make_ending, make_queue
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after

N = 30
TEXT = text_after(PROMPT, N)


def mostly_right(prefix: Sequence[int]) -> int:
    """Wrong in one place out of four."""
    return next_token(prefix) if next_token(prefix, salt=1) % 4 else next_token(prefix, salt=2)


DRAFTS = {
    "the target itself": next_token,
    "mostly right": mostly_right,
    "random": lambda prefix: next_token(prefix, salt=3),
    "constant": lambda _: 5,
}


@pytest.mark.parametrize("name", DRAFTS)
@given(moves=st.lists(st.integers(0, 4), max_size=60), n_max=st.integers(1, 6))
def test_the_draft_moves_while_the_target_does(name: str, moves: list[int], n_max: int) -> None:
    """Draft steps fall inside target decodes (where the target's decision is still out) and between them."""
    queue = make_queue(n_max)
    drafter = make_drafter(FakeContext(DRAFTS[name]), queue)
    schedule = iter(moves)

    def move() -> None:
        for _ in range(next(schedule, 1)):
            drafter.step()

    tokens: list[int] = []
    target = FakeContext(during=move)
    for step in generate(target, queue, Greedy(), make_ending(N), Metrics()):
        tokens += step.tokens
        assert target.tokens == (PROMPT + tokens)[:-1], "the cache holds all but the last accepted token"
        move()
    assert tokens == TEXT


@pytest.mark.parametrize("name", DRAFTS)
@given(moves=st.lists(st.integers(0, 3), max_size=60))
def test_the_target_moves_while_the_draft_does(name: str, moves: list[int]) -> None:
    """Target steps fall inside draft decodes, so that guesses come late, stale, or against a changed text."""
    queue = make_queue()
    tokens: list[int] = []
    schedule = iter(moves)
    steps = generate(FakeContext(), queue, Greedy(), make_ending(N), Metrics())

    def move() -> None:
        for _ in range(next(schedule, 1)):
            if (step := next(steps, None)) is not None:
                tokens.extend(step.tokens)

    drafter = make_drafter(FakeContext(DRAFTS[name], during=move), queue)
    while len(tokens) < N:
        drafter.step()
        move()
    assert tokens == TEXT


def test_a_good_draft_saves_decodes() -> None:
    """The same property with nothing random, so that it is known that candidates are really used."""
    queue = make_queue()
    drafter = make_drafter(FakeContext(), queue)
    target = FakeContext(during=lambda: [drafter.step() for _ in range(4)])
    metrics = Metrics()
    tokens = [token for step in generate(target, queue, Greedy(), make_ending(N), metrics) for token in step.tokens]
    assert tokens == TEXT
    assert len(target.batches) < N / 2
    assert sum(n_accepted for _, _, n_accepted, _ in metrics.steps) > N / 2


def test_the_draft_catches_up_in_one_batch() -> None:
    queue = make_queue()
    draft = FakeContext(n_batch=100)
    drafter = make_drafter(draft, queue)
    drafter.step()
    queue.commit(tuple(TEXT[:10]))
    drafter.step()
    assert draft.batches == [len(PROMPT), 10]
    assert draft.tokens == PROMPT + TEXT[:10]


def test_a_rejection_during_a_draft_decode_costs_only_what_was_wrong() -> None:
    queue = make_queue(n_ahead=9)
    draft = FakeContext(n_batch=100)
    drafter = make_drafter(draft, queue)
    for _ in range(5):
        drafter.step()
    # While the sixth guess is made, the target accepts four and writes something else for the fifth.
    draft.during = lambda: queue.commit((*TEXT[:4], (TEXT[4] + 1) % N_VOCAB))
    drafter.step()
    draft.during = lambda: None
    drafter.step()
    assert draft.batches == [len(PROMPT), 1, 1, 1, 1, 1, 1]
    assert draft.tokens == [*PROMPT, *TEXT[:4], (TEXT[4] + 1) % N_VOCAB]


def test_a_draft_decode_that_has_become_useless_is_cancelled() -> None:
    draft = FakeContext(n_batch=100)
    queue = CandidateQueue(Session(PROMPT, N_VOCAB), Eager(4, 9), drafting=True, cancel=draft.cancel)
    drafter = make_drafter(draft, queue)
    drafter.step()
    draft.during = lambda: queue.commit((TEXT[0],))
    drafter.step()
    assert draft.tokens == PROMPT + TEXT[:1], "right so far: not cancelled"
    draft.during = lambda: queue.commit(((TEXT[1] + 1) % N_VOCAB,))
    assert drafter.step()
    assert draft.tokens == PROMPT + TEXT[:1]
    draft.during = lambda: None
    drafter.step()
    assert draft.tokens == [*PROMPT, TEXT[0], (TEXT[1] + 1) % N_VOCAB]


def test_a_draft_that_agrees_with_the_text_loses_nothing() -> None:
    queue = make_queue(n_ahead=9)
    draft = FakeContext()
    drafter = make_drafter(draft, queue)
    for _ in range(6):
        drafter.step()
    queue.commit(tuple(TEXT[:3]))
    drafter.step()
    assert draft.batches == [len(PROMPT), 1, 1, 1, 1, 1, 1], "never rolled back"


def test_a_draft_with_a_smaller_vocabulary_retires_when_the_target_leaves_it() -> None:
    queue = make_queue()
    drafter = make_drafter(FakeContext(lambda _: 0, n_vocab=9), queue)
    assert drafter.step()
    queue.commit((N_VOCAB - 1,))
    assert not drafter.step()


def test_guesses_beyond_the_targets_vocabulary_are_cut() -> None:
    queue = make_queue()
    draft = FakeContext(lambda _: N_VOCAB + 2, n_vocab=N_VOCAB + 3)
    make_drafter(draft, queue).step()
    (token,) = queue.take(100).tokens
    assert token < N_VOCAB

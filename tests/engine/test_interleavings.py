"""Whatever the order in which draft and target move, and whatever the draft guesses, the text is the target's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.target import generate
from duo.errors import DecodeAborted
from duo.spec.sampling import Greedy
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Step
from duo.spec.verify import Matching
from tests.engine.helpers import PROMPT, Unthreaded, make_drafter, make_ending, make_queue
from tests.fakes import N_VOCAB, Eager, FakeContext, Scripted, next_token, text_after

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


def generating(
    target: FakeContext, draft: FakeContext, queue: CandidateQueue, metrics: Metrics | None = None
) -> tuple[Unthreaded, Iterator[Step]]:
    """The draft's side, to be moved by hand, and the target's."""
    drafting = Unthreaded(target, draft, queue)
    return drafting, generate(target, queue, drafting, Matching(Greedy()), make_ending(N), metrics or Metrics())


@pytest.mark.parametrize("name", DRAFTS)
@given(moves=st.lists(st.integers(0, 4), max_size=60), n_max=st.integers(1, 6))
def test_the_draft_moves_while_the_target_does(name: str, moves: list[int], n_max: int) -> None:
    """Draft steps fall inside target decodes (where the target's decision is still out) and between them."""
    queue = make_queue(Eager(n_max, 6))
    numbers = iter(moves)

    def move() -> None:
        for _ in range(next(numbers, 1)):
            drafting.drafter.step()

    tokens: list[int] = []
    target = FakeContext(during=move)
    drafting, steps = generating(target, FakeContext(DRAFTS[name]), queue)
    for step in steps:
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
    numbers = iter(moves)

    def move() -> None:
        for _ in range(next(numbers, 1)):
            if (step := next(steps, None)) is not None:
                tokens.extend(step.tokens)

    drafting, steps = generating(FakeContext(), FakeContext(DRAFTS[name], during=move), queue)
    while len(tokens) < N:
        drafting.drafter.step()
        move()
    assert tokens == TEXT


@pytest.mark.parametrize("name", DRAFTS)
@given(
    moves=st.lists(st.integers(0, 4), max_size=30),
    script=st.lists(st.sampled_from(Schedule), min_size=1, max_size=30),
    probes=st.lists(st.booleans(), max_size=30),
)
def test_the_schedule_changes_at_any_step(
    name: str, moves: list[int], script: list[Schedule], probes: list[bool]
) -> None:
    """Beside the target the draft moves as above; in turns it is driven by the target's thread, when it is off not."""
    queue = make_queue(Scripted(4, 6, iter(script), iter(probes)))
    numbers = iter(moves)

    def move() -> None:
        for _ in range(next(numbers, 1) if drafting.schedule is Schedule.ASYNC else 0):
            drafting.drafter.step()

    tokens: list[int] = []
    target = FakeContext(during=move)
    drafting, steps = generating(target, FakeContext(DRAFTS[name]), queue)
    for step in steps:
        tokens += step.tokens
        assert target.tokens == (PROMPT + tokens)[:-1], "the cache holds all but the last accepted token"
        move()
    assert tokens == TEXT
    assert drafting.error is None


@pytest.mark.parametrize("n_max", [1, 4, 6])
def test_in_turns_the_draft_makes_what_the_target_verifies(n_max: int) -> None:
    target, draft = FakeContext(), FakeContext()
    metrics = Metrics()
    _, steps = generating(target, draft, make_queue(Eager(n_max, 6, Schedule.SYNC)), metrics)
    tokens = [token for step in steps for token in step.tokens]
    assert tokens == TEXT
    n_left = N - 1  # the first token comes with the prompt
    n_steps, n_last = divmod(n_left, n_max + 1)
    assert target.batches == [len(PROMPT), *[n_max + 1] * n_steps, *[n_last] * bool(n_last)]
    assert [step.n_accepted for step in metrics.steps[1:]] == [size - 1 for size in target.batches[1:]]
    # It reads the prompt and the first token, then guesses; its last guess is read with the target's next token.
    assert draft.batches[:n_max] == [len(PROMPT) + 1, *[1] * (n_max - 1)]
    assert draft.batches[n_max] == 2


def test_a_good_draft_saves_decodes() -> None:
    """The same property with nothing random, so that it is known that candidates are really used."""
    target = FakeContext(during=lambda: [drafting.drafter.step() for _ in range(4)])
    metrics = Metrics()
    drafting, steps = generating(target, FakeContext(), make_queue(), metrics)
    tokens = [token for step in steps for token in step.tokens]
    assert tokens == TEXT
    assert len(target.batches) < N / 2
    assert sum(step.n_accepted for step in metrics.steps) > N / 2


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
    queue = make_queue(Eager(4, 9))
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
    queue = CandidateQueue(Session(PROMPT, N_VOCAB), Eager(4, 9), has_draft=True, cancel=draft.cancel)
    drafter = make_drafter(draft, queue)
    drafter.step()
    draft.during = lambda: queue.commit((TEXT[0],))
    drafter.step()
    assert draft.tokens == PROMPT + TEXT[:1], "right so far: not cancelled"
    draft.during = lambda: queue.commit(((TEXT[1] + 1) % N_VOCAB,))
    with pytest.raises(DecodeAborted):
        drafter.step()
    assert draft.tokens == PROMPT + TEXT[:1]
    draft.during = lambda: None
    drafter.step()
    assert draft.tokens == [*PROMPT, TEXT[0], (TEXT[1] + 1) % N_VOCAB]


def test_a_draft_that_agrees_with_the_text_loses_nothing() -> None:
    queue = make_queue(Eager(4, 9))
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

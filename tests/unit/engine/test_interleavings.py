"""Whatever the order in which draft and target move, and whatever the draft guesses, the text is the target's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.engine.cache import Cache
from duo.errors import DecodeAborted
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.types import Step
from tests.fakes import N_VOCAB, THREADS, Eager, FakeContext, Scripted, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Unthreaded, Writing, begun, make_ending, run

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


def writing(target: FakeContext, draft: FakeContext, policy: Policy) -> tuple[Writing, Unthreaded]:
    """The target's side, and the draft's, to be moved by hand."""
    local = Unthreaded(Cache(draft), policy, THREADS)
    return Writing(target, local, make_ending(N)), local


@pytest.mark.parametrize("name", DRAFTS)
@given(moves=st.lists(st.integers(0, 4), max_size=60), n_max=st.integers(1, 6))
def test_the_draft_moves_while_the_target_does(name: str, moves: list[int], n_max: int) -> None:
    """Draft steps fall inside target decodes (where the target's decision is still out) and between them."""
    numbers = iter(moves)

    def move() -> None:
        for _ in range(next(numbers, 1)):
            draft.drafter.step()

    tokens: list[int] = []

    def put(step: Step) -> None:
        tokens.extend(step.tokens)
        assert target.tokens == (PROMPT + tokens)[:-1], "the cache holds all but the last accepted token"
        move()

    target = FakeContext(during=move)
    generation, draft = writing(target, FakeContext(DRAFTS[name]), Eager(n_max, 6))
    assert run(generation, put) == TEXT


class Hurried(FakeContext):
    """Too fast to be cancelled."""

    def cancel(self) -> None: ...


@pytest.mark.parametrize("kind", [Hurried, FakeContext])
@pytest.mark.parametrize("name", DRAFTS)
@given(moves=st.lists(st.integers(0, 3), max_size=60))
def test_the_target_moves_while_the_draft_does(name: str, kind: type[FakeContext], moves: list[int]) -> None:
    """Target steps fall inside draft decodes, so that guesses come late, stale, or against a changed text."""
    tokens: list[int] = []
    numbers = iter(moves)

    def move() -> None:
        for _ in range(next(numbers, 1)):
            if (step := next(steps, None)) is not None:
                tokens.extend(step.tokens)

    generation, draft = writing(FakeContext(), kind(DRAFTS[name], during=move), Eager(4, 6))
    steps: Iterator[Step] = generation.steps()
    tokens.extend(next(steps).tokens)
    while len(tokens) < N:
        with suppress(DecodeAborted):
            draft.drafter.step()
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
    numbers = iter(moves)

    def move() -> None:
        for _ in range(next(numbers, 1) if draft.schedule is Schedule.ASYNC else 0):
            draft.drafter.step()

    tokens: list[int] = []

    def put(step: Step) -> None:
        tokens.extend(step.tokens)
        assert target.tokens == (PROMPT + tokens)[:-1], "the cache holds all but the last accepted token"
        move()

    target = FakeContext(during=move)
    policy = Scripted(4, 6, iter(script), iter(probes))
    generation, draft = writing(target, FakeContext(DRAFTS[name]), policy)
    assert run(generation, put) == TEXT
    assert generation.metrics.draft_error is None


@pytest.mark.parametrize("n_max", [1, 4, 6])
def test_in_turns_the_draft_makes_what_the_target_verifies(n_max: int) -> None:
    target, draft = FakeContext(), FakeContext()
    generation, _ = writing(target, draft, Eager(n_max, 6, Schedule.SYNC))
    assert run(generation) == TEXT
    n_left = N - 1  # the first token comes with the prompt
    n_steps, n_last = divmod(n_left, n_max + 1)
    assert target.batches == [len(PROMPT), *[n_max + 1] * n_steps, *[n_last] * bool(n_last)]
    assert [step.n_accepted for step in generation.metrics.steps[1:]] == [size - 1 for size in target.batches[1:]]
    # It reads the prompt and the first token, then guesses; its last guess is read with the target's next token.
    assert draft.batches[:n_max] == [len(PROMPT) + 1, *[1] * (n_max - 1)]
    assert draft.batches[n_max] == 2


def test_a_good_draft_saves_decodes() -> None:
    """The same property with nothing random, so that it is known that candidates are really used."""
    target = FakeContext(during=lambda: [draft.drafter.step() for _ in range(4)])
    generation, draft = writing(target, FakeContext(), Eager(4, 6))
    assert run(generation) == TEXT
    assert len(target.batches) < N / 2
    assert sum(step.n_accepted for step in generation.metrics.steps) > N / 2


def test_the_draft_catches_up_in_one_batch() -> None:
    context = FakeContext(n_batch=100)
    draft = begun(context)
    draft.drafter.step()
    draft.commit(TEXT[:10], None)
    draft.drafter.step()
    assert context.batches == [len(PROMPT), 10]
    assert context.tokens == PROMPT + TEXT[:10]


def test_a_rejection_during_a_draft_decode_costs_only_what_was_wrong() -> None:
    context = Hurried(n_batch=100)
    draft = begun(context, Eager(4, 9))
    for _ in range(5):
        draft.drafter.step()
    # While the sixth guess is made, the target accepts four and writes something else for the fifth.
    context.during = lambda: draft.commit((*TEXT[:4], (TEXT[4] + 1) % N_VOCAB), None)
    draft.drafter.step()
    context.during = lambda: None
    draft.drafter.step()
    assert context.batches == [len(PROMPT), 1, 1, 1, 1, 1, 1]
    assert context.tokens == [*PROMPT, *TEXT[:4], (TEXT[4] + 1) % N_VOCAB]


def test_a_draft_decode_that_has_become_useless_is_cancelled() -> None:
    context = FakeContext(n_batch=100)
    draft = begun(context, Eager(4, 9))
    draft.drafter.step()
    context.during = lambda: draft.commit((TEXT[0],), None)
    draft.drafter.step()
    assert context.tokens == PROMPT + TEXT[:1], "right so far: not cancelled"
    context.during = lambda: draft.commit(((TEXT[1] + 1) % N_VOCAB,), None)
    with pytest.raises(DecodeAborted):
        draft.drafter.step()
    assert context.tokens == PROMPT + TEXT[:1]
    context.during = lambda: None
    draft.drafter.step()
    assert context.tokens == [*PROMPT, TEXT[0], (TEXT[1] + 1) % N_VOCAB]


def test_a_draft_that_agrees_with_the_text_loses_nothing() -> None:
    context = FakeContext()
    draft = begun(context, Eager(4, 9))
    for _ in range(6):
        draft.drafter.step()
    draft.commit(TEXT[:3], None)
    draft.drafter.step()
    assert context.batches == [len(PROMPT), 1, 1, 1, 1, 1, 1], "never rolled back"


def test_a_draft_with_a_smaller_vocabulary_retires_when_the_target_leaves_it() -> None:
    draft = begun(FakeContext(lambda _: 0, n_vocab=9))
    assert draft.drafter.step()
    draft.commit((N_VOCAB - 1,), None)
    assert not draft.drafter.step()


def test_guesses_beyond_the_targets_vocabulary_are_cut() -> None:
    draft = begun(FakeContext(lambda _: N_VOCAB + 2, n_vocab=N_VOCAB + 3))
    draft.drafter.step()
    (token,) = draft.candidates(100).tokens
    assert token < N_VOCAB

"""Whatever the order in which draft and target move, and whatever the draft proposes, the text is the target's own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duo.engine.drafter import Drafter
from duo.engine.kv_store import Cache
from duo.errors import DecodeAborted, DecodeError
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from duo.speculation.types import Step
from tests.fakes import Eager, FakeContext, Preparing, Scripted, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Unthreaded, Writing, make_ending, run

N = 30
TEXT = text_after(PROMPT, N)


def mostly_right(prefix: Sequence[int]) -> int:
    """Wrong in one place out of four."""
    return next_token(prefix) if next_token(prefix, salt=1) % 4 else next_token(prefix, salt=2)


class Hurried(FakeContext):
    """Too fast to be cancelled."""

    def cancel(self) -> None: ...


DRAFTS: dict[str, Callable[[Sequence[int]], int]] = {
    "perfect": next_token,
    "mostly right": mostly_right,
    "random": lambda prefix: next_token(prefix, salt=3),
    "constant": lambda _: 5,
}
NAMES = st.sampled_from(list(DRAFTS))
MANY = settings(max_examples=3 * settings().max_examples)


def writing(target: FakeContext, draft: FakeContext, estimates: DraftEstimates) -> tuple[Writing, Unthreaded]:
    """The target's side, and the draft's, to be moved by hand."""
    local = Unthreaded(Cache(draft), estimates)
    return Writing(target, local, make_ending(N)), local


def step(drafter: Drafter, context: FakeContext) -> None:
    drafter.step()
    assert context.tokens == drafter._tokens[: context.n_past], "the cache holds the draft's text"


def write(estimates: DraftEstimates, context: FakeContext, moves: Sequence[int]) -> Writing:
    """Write TEXT, with so many draft steps within and between target decodes of the concurrent schedule."""
    numbers, tokens = iter(moves), list[int]()

    def move() -> None:
        try:
            for _ in range(next(numbers, 1) if draft.estimates.schedule is Schedule.ASYNC else 0):
                step(draft.drafter, context)
        except DecodeError as error:
            draft._fail(error)

    def put(step: Step) -> None:
        tokens.extend(step.tokens)
        assert target.tokens == (PROMPT + tokens)[:-1], "the cache holds all but the last accepted token"
        move()

    target = FakeContext(during=move)
    generation, draft = writing(target, context, estimates)
    assert run(generation, put) == TEXT
    assert generation.metrics.draft_error in (None, "dead")
    return generation


def close(prefix: Sequence[int]) -> list[int]:
    """The next-best tokens of a draft that seldom has the right one first, and often second or third."""
    return [next_token(prefix, salt) for salt in ((4, 0, 5), (0, 4, 5), (6, 4, 5))[next_token(prefix, salt=7) % 3]]


def preparing(name: str, kind: type[FakeContext] = FakeContext) -> FakeContext:
    return kind(DRAFTS[name], n_branches=4, others=close)


@MANY
@given(
    name=NAMES,
    moves=st.lists(st.integers(0, 4), max_size=60),
    n_max=st.integers(1, 6),
    n_branches=st.integers(0, 8),
    n_ahead=st.integers(1, 8),
)
def test_the_draft_moves_during_target_decodes(
    name: str, moves: list[int], n_max: int, n_branches: int, n_ahead: int
) -> None:
    """It may prepare outcomes."""
    write(Preparing(n_max, n_ahead, n_branches), preparing(name), moves)


@given(
    name=NAMES,
    moves=st.lists(st.integers(0, 4), max_size=30),
    script=st.lists(st.sampled_from(Schedule), min_size=1, max_size=30),
    probes=st.lists(st.booleans(), max_size=30),
)
def test_the_schedule_changes_at_any_step(
    name: str, moves: list[int], script: list[Schedule], probes: list[bool]
) -> None:
    write(Scripted(4, 6, iter(script), iter(probes)), FakeContext(DRAFTS[name]), moves)


@pytest.mark.parametrize("kind", [Hurried, FakeContext])
@MANY
@given(name=NAMES, moves=st.lists(st.integers(0, 3), max_size=60), n_branches=st.sampled_from((0, 4)))
def test_the_target_moves_during_draft_decodes(
    kind: type[FakeContext], name: str, moves: list[int], n_branches: int
) -> None:
    """So that candidates are late, stale, or follow a rejected prefix, and outcomes come true in a decode of them."""
    numbers, tokens, context = iter(moves), list[int](), preparing(name, kind)

    def move() -> None:
        for _ in range(next(numbers, 1)):
            if (written := next(steps, None)) is not None:
                tokens.extend(written.tokens)

    context.during = move
    generation, draft = writing(FakeContext(), context, Preparing(4, 6, n_branches))
    steps: Iterator[Step] = generation.steps()
    tokens.extend(next(steps).tokens)
    while len(tokens) < N:
        with suppress(DecodeAborted):
            step(draft.drafter, context)
        move()
    assert tokens == TEXT


@given(name=NAMES, moves=st.lists(st.integers(0, 3), max_size=60), n_left=st.integers(0, 20))
def test_a_draft_that_prepares_outcomes_is_killed(name: str, moves: list[int], n_left: int) -> None:
    left, context = iter(range(n_left)), preparing(name)

    def die() -> None:
        if next(left, None) is None:
            raise DecodeError("dead")

    context.during = die
    write(Preparing(4, 6), context, moves)


@pytest.mark.parametrize("n_max", [1, 4, 6])
def test_a_sequential_draft_makes_what_the_target_verifies(n_max: int) -> None:
    target, draft = FakeContext(), FakeContext()
    generation, _ = writing(target, draft, Eager(n_max, 6, Schedule.SYNC))
    assert run(generation) == TEXT
    n_left = N - 1  # the first token comes with the prompt
    n_steps, n_last = divmod(n_left, n_max + 1)
    assert target.batches == [len(PROMPT), *[n_max + 1] * n_steps, *[n_last] * bool(n_last)]
    assert [step.n_accepted for step in generation.metrics.steps[1:]] == [size - 1 for size in target.batches[1:]]
    # It decodes the prompt and the first token, then drafts; its last token is decoded with the target's next one.
    assert draft.batches[:n_max] == [len(PROMPT) + 1, *[1] * (n_max - 1)]
    assert draft.batches[n_max] == 2

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from duo.engine.statistics import CONTEXT_FULL, INTERRUPTED, LIMIT
from duo.errors import DecodeError
from duo.speculation.modes import Schedule
from duo.speculation.types import Step
from tests.fakes import Eager, FakeContext, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Limited, Writing, draft_threads, make_ending, run

N = 60
TEXT = text_after(PROMPT, N)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert draft_threads() == []


@pytest.mark.parametrize("n_rollback", [0, 1, 3])
@pytest.mark.parametrize("salt", [0, 1], ids=["right", "wrong"])
@pytest.mark.parametrize("schedule", [Schedule.ASYNC, Schedule.SYNC])
def test_no_more_candidates_are_verified_than_can_be_rolled_back(
    n_rollback: int, salt: int, schedule: Schedule
) -> None:
    """The fake refuses to roll back more."""
    target = FakeContext(n_batch=32, n_rollback=n_rollback)
    draft = FakeContext(lambda prefix: next_token(prefix, salt))
    generation = Writing(target, draft, make_ending(N), Eager(8, 8, schedule))
    assert run(generation) == TEXT
    n_verified = max(step.n_candidates for step in generation.metrics.steps)
    assert n_verified == n_rollback if schedule is Schedule.SYNC else n_verified <= n_rollback


# The end


@pytest.mark.parametrize("schedule", Schedule)
def test_a_failure_of_the_target_is_raised(schedule: Schedule) -> None:
    def fail(prefix: Sequence[int]) -> int:
        if len(prefix) > 10:
            raise DecodeError("the target is dead")
        return next_token(prefix)

    with pytest.raises(DecodeError, match="the target is dead"):
        run(Writing(FakeContext(fail), FakeContext(), make_ending(N), Eager(4, 6, schedule)))


def test_an_interruption_ends_the_prefill() -> None:
    target = FakeContext(n_batch=1)
    generation = Writing(target, FakeContext(), make_ending(N))
    target.during = generation.interrupt
    assert run(generation) == []
    assert generation.metrics.stop == INTERRUPTED


@pytest.mark.parametrize(
    ("n_ctx", "n_predict", "n", "stop"),
    [
        *((n_ctx, -1, n_ctx - len(PROMPT), CONTEXT_FULL) for n_ctx in (3, 4, 5, 20)),
        *((1000, n, n, LIMIT) for n in (0, 1, 2, 5)),
    ],
)
@pytest.mark.parametrize("with_draft", [False, True])
def test_a_full_context_and_the_token_limit_end_the_text(
    n_ctx: int, n_predict: int, n: int, stop: str, with_draft: bool
) -> None:
    draft = FakeContext(n_ctx=n_ctx) if with_draft else None
    target = FakeContext(n_ctx=n_ctx, n_batch=32)
    generation = Writing(target, draft, make_ending(n_predict))
    assert run(generation) == TEXT[:n]
    assert generation.metrics.stop == stop


@pytest.mark.parametrize("schedule", [Schedule.OFF, Schedule.SYNC])
def test_the_first_decode_of_a_size_teaches_nothing(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time includes what a device had to compile. What it shows about the draft is learned all the same."""
    target, estimates, learned = FakeContext(), Eager(4, 6, schedule), list[int]()

    def during() -> None:
        target.was_first = target.batches.count(target.batches[-1]) == 1

    target.during = during
    writing = Writing(target, FakeContext(), make_ending(N), estimates)

    def add(n: int, _: float) -> float:
        learned.append(n)
        return 1.0

    monkeypatch.setattr(estimates.target.alone, "add", add)
    assert run(writing) == TEXT
    sizes = Counter(target.batches[1:])  # without the prompt
    assert Counter(learned) == sizes - Counter({*sizes})
    assert len(estimates.scores) == sum(n * (size - 1) for size, n in sizes.items())


@pytest.mark.parametrize(
    "ends", [{"n_predict": 12}, {"end_token": TEXT[11]}, {"stops": ["".join(chr(97 + t) for t in TEXT[6:9])]}]
)
def test_each_token_that_is_written_has_its_logprobs_and_none_after_the_end(ends: dict[str, Any]) -> None:
    steps: list[Step] = []
    draft = Eager(4, 6, Schedule.SYNC)
    made = Writing(FakeContext(n_batch=32), FakeContext(), make_ending(**ends), draft, n_logprobs=2)
    tokens = run(made, steps.append)
    assert max(len(step.tokens) for step in steps) > 1
    found = [one for step in steps for one in step.logprobs]
    assert tokens == [one.token for one in found] == [one.top[0][0] for one in found] == TEXT[: len(tokens)]
    assert len(tokens) == (9 if "stops" in ends else 12)


# Threads


def test_the_targets_threads_are_within_the_free_cores() -> None:
    target = FakeContext()
    generation = Writing(target, None, make_ending(8), cores=Limited(0, 0, 3, 3, 1, 0))
    assert run(generation) == TEXT[:8]
    assert target.teams == [8, 6, 3, 3, 1, 6, 6, 6], "8: the prompt"

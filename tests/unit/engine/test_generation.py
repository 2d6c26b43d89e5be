from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from duo.engine.text import CONTEXT_FULL, INTERRUPTED, LIMIT
from duo.speculation.policy import StepCost
from duo.speculation.schedule import Schedule

from duo.errors import DecodeError
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


class Learning(Eager):
    """Records the candidates of each step whose cost it learns, and how many candidates were scored."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(4, 6, schedule)
        self.learned: list[int] = []
        self.n_scores = 0

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        self.learned.append(cost.n_candidates)
        super().learn_step(n_tokens, cost)

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        scores = list(scores)
        self.n_scores += len(scores)
        super().learn_scores(scores)


@pytest.mark.parametrize("schedule", [Schedule.OFF, Schedule.SYNC])
def test_the_first_decode_of_a_size_teaches_nothing(schedule: Schedule) -> None:
    """Its time includes what a device had to compile. What it shows about the draft is learned all the same."""
    target, policy = FakeContext(), Learning(schedule)

    def during() -> None:
        target.was_first = target.batches.count(target.batches[-1]) == 1

    target.during = during
    assert run(Writing(target, FakeContext(), make_ending(N), policy)) == TEXT
    sizes = Counter(target.batches[1:])  # without the prompt
    assert Counter(n + 1 for n in policy.learned) == sizes - Counter({*sizes})
    assert policy.n_scores == sum(n * (size - 1) for size, n in sizes.items())


@pytest.mark.parametrize(
    "ends", [{"n_predict": 12}, {"end_token": TEXT[11]}, {"stops": ["".join(chr(97 + t) for t in TEXT[6:9])]}]
)
def test_each_token_that_is_written_has_its_logprobs_and_none_after_the_end(ends: dict[str, Any]) -> None:
    steps: list[Step] = []
    policy = Eager(4, 6, Schedule.SYNC)
    made = Writing(FakeContext(n_batch=32), FakeContext(), make_ending(**ends), policy, n_logprobs=2)
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

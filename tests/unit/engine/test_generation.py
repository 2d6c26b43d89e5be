from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import pytest

from duo.engine.text import CONTEXT_FULL, END_OF_TEXT, INTERRUPTED, LIMIT, STOP_STRING
from duo.errors import DecodeError
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, restless, text_after
from tests.unit.engine.helpers import PROMPT, draft_threads, make_ending, make_generation, run

N = 60
TEXT = text_after(PROMPT, N)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> object:
    yield
    assert draft_threads() == []


def nap() -> None:
    time.sleep(random.random() / 2000)


@pytest.mark.parametrize("n_max", [0, 1, 4, 16])
@pytest.mark.parametrize("salt", [0, 1])
@pytest.mark.parametrize("naps", ["target", "draft", "both"])
def test_with_threads_the_text_is_the_targets_own(n_max: int, salt: int, naps: str) -> None:
    target = FakeContext(during=nap if naps != "draft" else lambda: None, n_batch=32)
    draft = FakeContext(lambda prefix: next_token(prefix, salt), during=nap if naps != "target" else lambda: None)
    generation = make_generation(target, draft, make_ending(N), Eager(n_max, 8))
    assert run(generation) == TEXT
    assert target.threads == {threading.get_ident()}
    assert len(draft.threads) <= 1, "one thread, and none without candidates"
    assert not draft.threads & target.threads
    assert generation.metrics.stop == LIMIT


@pytest.mark.parametrize("n_rollback", [0, 1, 3])
@pytest.mark.parametrize("salt", [0, 1])
@pytest.mark.parametrize("schedule", [Schedule.ASYNC, Schedule.SYNC])
def test_no_more_is_verified_than_can_be_taken_back(n_rollback: int, salt: int, schedule: Schedule) -> None:
    """The fake refuses to take back more."""
    target = FakeContext(n_batch=32, n_rollback=n_rollback)
    draft = FakeContext(lambda prefix: next_token(prefix, salt))
    generation = make_generation(target, draft, make_ending(N), Eager(8, 8, schedule))
    assert run(generation) == TEXT
    n_verified = max(step.n_candidates for step in generation.metrics.steps)
    assert n_verified == n_rollback if schedule is Schedule.SYNC else n_verified <= n_rollback


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("salt", [0, 1])
def test_whatever_the_schedule_the_text_is_the_targets_own(seed: int, salt: int) -> None:
    """It changes at random at every step, and the draft is probed at random."""
    target = FakeContext(during=nap if seed % 2 else lambda: None, n_batch=32)
    draft = FakeContext(lambda prefix: next_token(prefix, salt), during=nap if seed % 3 else lambda: None)
    generation = make_generation(target, draft, make_ending(N), restless(seed))
    assert run(generation) == TEXT
    assert generation.metrics.draft_error is None
    assert len({step.schedule for step in generation.metrics.steps}) > 1


@pytest.mark.parametrize("salt", [0, 1])
def test_with_the_real_policy_too(salt: int) -> None:
    target = FakeContext(during=nap, n_batch=32, n_ctx=2000)
    draft = FakeContext(lambda prefix: next_token(prefix, salt), n_ctx=2000)
    generation = make_generation(target, draft, make_ending(1000), Policy(8, 16, draft_threads=(1, 2)))
    assert run(generation) == text_after(PROMPT, 1000)
    assert generation.metrics.draft_error is None


@pytest.mark.parametrize(("n_predict", "n_room"), [(-1, None), (5, 5)])
def test_the_policy_is_told_what_begins(n_predict: int, n_room: int | None) -> None:
    told: list[tuple[int, int | None, str]] = []

    class Told(Eager):
        def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "") -> None:
            told.append((n_prompt, n_room, mode))
            super().begin(n_prompt, n_room, mode)

    run(make_generation(FakeContext(n_ctx=20), FakeContext(), make_ending(n_predict), Told(4, 6)))
    assert told == [(len(PROMPT), n_room, "greedy")]


def test_without_a_draft_every_batch_is_one_token() -> None:
    target = FakeContext()
    assert run(make_generation(target, None, make_ending(N))) == TEXT
    assert target.batches == [len(PROMPT), *[1] * (N - 1)]


@pytest.mark.parametrize("schedule", Schedule)
def test_a_target_that_fails_ends_it_in_every_schedule(schedule: Schedule) -> None:
    def fail(prefix: Sequence[int]) -> int:
        if len(prefix) > 10:
            raise DecodeError("the target is dead")
        return next_token(prefix)

    with pytest.raises(DecodeError, match="the target is dead"):
        run(make_generation(FakeContext(fail), FakeContext(), make_ending(N), Eager(4, 6, schedule)))


def test_stop_ends_it_after_the_present_step() -> None:
    stop = threading.Event()
    generation = make_generation(FakeContext(), FakeContext(), make_ending())
    written: list[int] = []

    def put(step: object) -> None:
        written.append(1)
        if len(written) == 3:
            stop.set()

    generation.run(put, stop)
    assert len(written) == 3
    assert generation.metrics.stop == INTERRUPTED


def test_an_interruption_in_a_long_prompt_is_heeded() -> None:
    target = FakeContext(n_batch=1)
    generation = make_generation(target, FakeContext(), make_ending(N))
    target.during = generation.interrupt
    assert run(generation) == []
    assert generation.metrics.stop == INTERRUPTED


@pytest.mark.parametrize("n_ctx", [3, 4, 5, 20])
@pytest.mark.parametrize("with_draft", [False, True])
def test_a_full_context_ends_the_text(n_ctx: int, with_draft: bool) -> None:
    draft = FakeContext(n_ctx=n_ctx) if with_draft else None
    generation = make_generation(FakeContext(n_ctx=n_ctx, n_batch=32), draft, make_ending())
    # The last token needs no place: it is never decoded.
    assert run(generation) == TEXT[: n_ctx - len(PROMPT) + 1]
    assert generation.metrics.stop == CONTEXT_FULL


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("with_draft", [False, True])
def test_never_more_tokens_than_asked_for(n: int, with_draft: bool) -> None:
    target = FakeContext(during=nap)
    generation = make_generation(target, FakeContext() if with_draft else None, make_ending(n))
    assert run(generation) == TEXT[:n]
    assert generation.metrics.stop == LIMIT


def test_an_end_token_among_the_accepted_ends_the_text_there() -> None:
    end = TEXT[11]
    generation = make_generation(FakeContext(during=nap), FakeContext(), make_ending(end_token=end), Eager(8, 8))
    assert run(generation) == TEXT[: TEXT.index(end) + 1]
    assert generation.metrics.stop == END_OF_TEXT


def test_a_stop_string_ends_the_text_before_it() -> None:
    letters = "".join(chr(97 + token) for token in TEXT)
    stop = letters[20:23]
    shown: list[bytes] = []
    generation = make_generation(FakeContext(during=nap), FakeContext(), make_ending(stops=[stop]), Eager(8, 8))
    tokens = run(generation, lambda step: shown.extend(step.pieces))
    assert b"".join(shown).decode() == letters[: letters.index(stop)]
    assert tokens == TEXT[: letters.index(stop) + 3]
    assert generation.metrics.stop == STOP_STRING


def test_a_long_prompt_is_decoded_in_batches() -> None:
    target, draft = FakeContext(n_batch=4), FakeContext(n_batch=4)
    prompt, done = [token % N_VOCAB for token in range(50)], list[int]()
    generation = make_generation(target, draft, make_ending(5), prompt=prompt, on_prompt=done.append)
    assert run(generation) == text_after(prompt, 5)
    assert done == [4 * i for i in range(1, 13)]
    assert generation.metrics.n_prompt == 50


def test_what_is_in_the_cache_already_is_not_decoded_again() -> None:
    target = FakeContext()
    target.decode(PROMPT[:2])
    generation = make_generation(target, None, make_ending(5))
    assert run(generation) == TEXT[:5]
    assert target.batches == [2, 1, 1, 1, 1, 1]

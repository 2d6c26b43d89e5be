"""Who drives which model in which schedule, and what becomes of a draft when the schedule changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from duo.engine.cache import Cache
from duo.engine.drafter import Drafter
from duo.engine.local_draft import LocalDraft
from duo.engine.metrics import DraftStatistics, Metrics
from duo.engine.text import INTERRUPTED
from duo.errors import DecodeError
from duo.spec.sampling import Greedy
from duo.spec.schedule import Schedule
from tests.fakes import N_VOCAB, THREADS, Eager, FakeContext, Scripted, next_token, text_after
from tests.unit.engine.helpers import (
    PROMPT,
    Writing,
    draft_threads,
    make_ending,
    make_generation,
    make_queue,
    make_request,
    run,
    until,
)

N = 40
TEXT = text_after(PROMPT, N)
ME = threading.get_ident()

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


@pytest.fixture(autouse=True)
def no_thread_is_left() -> object:
    yield
    assert draft_threads() == []


class Alive:
    """Counts the draft's threads during each decode."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self) -> None:
        self.counts.append(len(draft_threads()))


def draft_statistics(generation: Writing) -> DraftStatistics:
    found = generation.metrics.statistics().draft
    assert found is not None
    return found


def scripted(*schedules: Schedule, probes: Sequence[bool] = ()) -> Scripted:
    """The first schedules; the last one to the end."""
    return Scripted(4, 6, iter(schedules), iter(probes))


def test_in_turns_the_targets_thread_drives_both_and_there_is_no_other() -> None:
    alive = Alive()
    target, draft = FakeContext(during=alive), FakeContext(during=alive)
    assert run(make_generation(target, draft, make_ending(N), Eager(4, 6, SYNC))) == TEXT
    assert target.threads == draft.threads == {ME}
    assert set(alive.counts) == {0}
    assert len(target.batches) < N / 2


def test_beside_each_other_each_has_a_thread_of_its_own() -> None:
    alive = Alive()
    target, draft = FakeContext(), FakeContext()

    def during() -> None:
        alive()
        until(lambda: len(target.batches) == 1 or draft.batches)

    target.during = during
    assert run(make_generation(target, draft, make_ending(N), Eager(4, 6, ASYNC))) == TEXT
    assert target.threads == {ME}
    assert len(draft.threads - {ME}) == len(draft.threads) == 1
    assert alive.counts == [0, *[1] * (len(target.batches) - 1)]


def test_when_it_is_off_the_draft_does_nothing() -> None:
    alive = Alive()
    target, draft = FakeContext(during=alive), FakeContext()
    assert run(make_generation(target, draft, make_ending(N), Eager(4, 6, OFF))) == TEXT
    assert (set(alive.counts), draft.batches) == ({0}, [])
    assert target.batches == [len(PROMPT), *[1] * (N - 1)]


@pytest.mark.parametrize("right", [True, False])
def test_when_it_is_off_the_draft_is_probed_on_the_targets_thread(right: bool) -> None:
    alive = Alive()
    draft = FakeContext(lambda prefix: (next_token(prefix) + 1 - right) % N_VOCAB, during=alive, n_batch=64)
    policy = scripted(OFF, probes=[False] * 8 + [True] + [False] * 9 + [True])
    generation = make_generation(FakeContext(), draft, make_ending(N), policy)
    assert run(generation) == TEXT
    assert (draft.threads, set(alive.counts)) == ({ME}, {0})
    assert draft.batches == [len(PROMPT) + 9, 10]
    # Of each batch all that the target wrote is judged, but for a first token.
    assert list(policy.scores) == [(5.0, right)] * (9 + 9)
    assert draft_statistics(generation).verified == 0


# Changes


def test_from_beside_to_in_turns_in_the_middle_of_a_draft_decode() -> None:
    alive = Alive()
    inside = threading.Event()
    target, draft = FakeContext(), FakeContext()

    def stay() -> None:
        if threading.get_ident() != ME:
            inside.set()
            until(lambda: draft.aborted)

    def during() -> None:
        alive()
        if len(target.batches) == 2:
            assert inside.wait(30)

    target.during, draft.during = during, stay
    generation = make_generation(target, draft, make_ending(N), scripted(ASYNC, SYNC))
    assert run(generation) == TEXT
    assert alive.counts == [0, 1, *[0] * (len(target.batches) - 2)]
    assert not draft.aborted
    assert ME in draft.threads
    assert len(draft.threads) == 2
    assert generation.metrics.draft_error is None
    # No guess came from beside the target; in turns all of them are right.
    assert [step.n_accepted for step in generation.metrics.steps][:6] == [0, 0, 4, 4, 4, 4]


def test_each_stretch_beside_the_target_has_a_thread_of_its_own() -> None:
    alive = Alive()
    script = [ASYNC, ASYNC, SYNC, ASYNC, OFF, OFF, SYNC, OFF, ASYNC, ASYNC, SYNC]
    target = FakeContext(during=alive)
    assert run(make_generation(target, FakeContext(), make_ending(N), scripted(*script))) == TEXT
    assert alive.counts[: len(script) + 1] == [0, *(int(schedule is ASYNC) for schedule in script)]


def test_what_was_guessed_in_one_schedule_is_verified_in_the_next() -> None:
    target, draft = FakeContext(), FakeContext()
    target.during = lambda: until(lambda: len(target.batches) != 2 or len(draft.batches) >= 6)
    generation = make_generation(target, draft, make_ending(N), scripted(ASYNC, SYNC))
    assert run(generation) == TEXT
    # Of at least six guesses the target has written one itself.
    assert generation.metrics.steps[2][2:] == (4, 4, 5, SYNC)
    assert all(size == 1 for size in draft.batches[1:7])


# Threads


def test_every_schedule_has_its_numbers_of_threads() -> None:
    target, draft = FakeContext(), FakeContext()
    script = (ASYNC, SYNC, OFF, ASYNC, OFF, SYNC, ASYNC)
    generation = make_generation(target, draft, make_ending(N), scripted(*script))
    assert run(generation) == TEXT
    assert target.teams[0] == 0, "the prompt is read with the threads that the context was made with"
    meant = [THREADS.beside[0] if schedule is ASYNC else THREADS.target for schedule in script]
    assert target.teams[1:8] == meant
    assert set(target.teams[8:]) == {THREADS.beside[0]}
    followed = [step.schedule for step in generation.metrics.steps]
    assert followed[:8] == [OFF, *script], "while the prompt is read none is"


def test_a_draft_beside_the_target_has_its_own_number_of_threads() -> None:
    target, draft = FakeContext(), FakeContext()
    target.during = lambda: until(lambda: len(target.batches) == 1 or draft.batches)
    run(make_generation(target, draft, make_ending(N)))
    assert set(draft.teams) == {THREADS.beside[1]}


def test_a_draft_in_turns_tries_its_numbers_of_threads_and_reads_with_all() -> None:
    draft = FakeContext()
    run(make_generation(FakeContext(), draft, make_ending(N), Eager(8, 8, SYNC, draft_threads=(2, 3))))
    teams = list(zip(draft.batches, draft.teams, strict=True))
    assert [team for size, team in teams if size == 1][:6] == [2, 2, 2, 3, 3, 3]
    assert {team for size, team in teams if size > 1} == {THREADS.target}


# The prompt


@pytest.mark.parametrize(
    ("schedule", "apart", "n_alive"), [(ASYNC, False, 0), (SYNC, False, 0), (SYNC, True, 0), (ASYNC, True, 1)]
)
def test_the_prompt_is_read_beside_the_draft_only_if_they_are_apart(
    schedule: Schedule, apart: bool, n_alive: int
) -> None:
    prompt = [token % N_VOCAB for token in range(20)]
    counts: list[tuple[int, bool]] = []
    target, draft = FakeContext(n_batch=4), FakeContext(n_batch=4)

    def during() -> None:
        if len(target.batches) <= 5:
            until(lambda: draft.batches or not n_alive)
            counts.append((len(draft_threads()), bool(draft.batches)))

    target.during = during
    threads = replace(THREADS, apart=apart)
    generation = make_generation(target, draft, make_ending(N), Eager(3, 6, schedule), threads, prompt)
    assert run(generation) == text_after(prompt, N)
    assert counts == [(n_alive, bool(n_alive))] * 5
    assert target.teams[0] == 0
    assert target.teams[-1] == (THREADS.beside[0] if schedule is ASYNC else THREADS.target)


# Drafts that end


def dying(n: int) -> Callable[[Sequence[int]], int]:
    """Guesses right `n` times."""
    left = iter(range(n))

    def choose(prefix: Sequence[int]) -> int:
        if next(left, None) is None:
            raise DecodeError("the draft is dead")
        return next_token(prefix)

    return choose


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_a_draft_that_dies_costs_nothing_but_its_help(schedule: Schedule, n: int) -> None:
    target, draft = FakeContext(), FakeContext(dying(n))
    policy = Eager(4, 60, schedule)
    if schedule is ASYNC:
        target.during = lambda: until(lambda: len(target.batches) == 1 or not draft_threads())
    generation = make_generation(target, draft, make_ending(N), policy)
    assert run(generation) == TEXT
    assert generation.metrics.draft_error == "the draft is dead"
    assert draft_statistics(generation).error == "the draft is dead"
    assert policy.schedule is OFF
    assert len(draft.batches) == n + 1, "nobody asks the dead"
    assert target.teams[-1] == THREADS.target, "the target has all the threads"
    assert generation.metrics.steps[-1].schedule is OFF


def test_a_draft_that_dies_during_the_last_decode() -> None:
    target, policy = FakeContext(), Eager(4, 60)
    target.during = lambda: until(lambda: len(target.batches) == 1 or not draft_threads())
    generation = make_generation(target, FakeContext(dying(0)), make_ending(2), policy)
    assert run(generation) == TEXT[:2]
    assert generation.metrics.draft_error == "the draft is dead"


def test_a_draft_that_dies_when_it_is_probed() -> None:
    draft = FakeContext(dying(0))
    policy = scripted(OFF, probes=[False] * 5 + [True] * N)
    generation = make_generation(FakeContext(), draft, make_ending(N), policy)
    assert run(generation) == TEXT
    assert generation.metrics.draft_error == "the draft is dead"
    assert len(draft.batches) == 1


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_a_draft_with_a_smaller_vocabulary_retires_without_an_error(schedule: Schedule) -> None:
    n_vocab = max(TEXT[:9])
    policy = Eager(4, 6, schedule)
    target = FakeContext()
    target.during = lambda: until(lambda: len(target.batches) < 10 or not draft_threads())
    generation = make_generation(target, FakeContext(lambda _: 0, n_vocab=n_vocab), make_ending(N), policy)
    assert run(generation) == TEXT
    assert generation.metrics.draft_error is None
    assert policy.schedule is OFF


@pytest.mark.parametrize("n_ctx", [4, 10, 11])
@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_a_draft_with_a_small_context_goes_on_with_the_end_of_the_text(schedule: Schedule, n_ctx: int) -> None:
    """Both models look back one token only, so that the draft is always right."""

    def by_the_last(prefix: Sequence[int]) -> int:
        return next_token(prefix[-1:])

    target, draft = FakeContext(by_the_last), FakeContext(by_the_last, n_ctx=n_ctx)
    generation = make_generation(target, draft, make_ending(N), Eager(4, 6, schedule))
    tokens = run(generation)
    assert tokens == run(make_generation(FakeContext(by_the_last), None, make_ending(N)))
    statistics = draft_statistics(generation)
    assert statistics.error is None
    if schedule is SYNC:
        assert statistics.accept_rate == 1.0
        assert len(target.batches) < N / 4


def test_an_interruption_while_the_draft_computes_in_turns_is_heeded() -> None:
    draft = FakeContext()
    generation = make_generation(FakeContext(), draft, make_ending(N), Eager(4, 6, SYNC))
    draft.during = lambda: generation.interrupt() if len(draft.batches) == 6 else None
    tokens = run(generation)
    assert tokens == TEXT[: len(tokens)]
    assert len(tokens) == 6
    assert generation.metrics.stop == INTERRUPTED
    assert generation.metrics.draft_error is None


@pytest.mark.parametrize("inside", [True, False])
def test_an_interrupted_draft_beside_the_target_ends_at_once(inside: bool) -> None:
    """While the target is still in its decode; `inside`: in the middle of one of its own."""
    stop = threading.Event()
    target, draft = FakeContext(), FakeContext()

    def during() -> None:
        if len(target.batches) == 4:
            until(lambda: len(draft.batches) > 3 if inside else generation.metrics.n_pending == 6)
            stop.set()
            generation.interrupt()
            until(lambda: not draft_threads())

    target.during = during
    draft.during = lambda: until(lambda: draft.aborted or len(draft.batches) <= 3) if inside else None
    generation = make_generation(target, draft, make_ending(N))
    tokens: list[int] = []
    generation.run(lambda step: tokens.extend(step.tokens), stop)
    assert draft.n_refused <= 1, "it tries no more"
    assert not draft.aborted
    assert len(target.batches) == 4
    assert tokens == TEXT[: len(tokens)]
    assert generation.metrics.stop == INTERRUPTED
    assert generation.metrics.draft_error is None


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_an_interruption_of_a_text_that_has_ended_is_none_of_the_next(schedule: Schedule) -> None:
    target, draft = FakeContext(), FakeContext()
    first = make_generation(FakeContext(), draft, make_ending(5), Eager(4, 6, schedule))
    run(first)
    first.interrupt()
    assert first.local is not None
    n_before = len(draft.batches)
    target.during = lambda: until(lambda: len(target.batches) != 2 or len(draft.batches) > n_before)
    assert run(Writing(target, first.local, make_ending(N))) == TEXT
    assert draft.n_refused == 0


# Text after text


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_a_draft_reads_of_the_next_text_only_what_is_new(schedule: Schedule) -> None:
    target, draft = FakeContext(n_batch=64), FakeContext(n_batch=64)
    target.during = lambda: until(lambda: len(target.batches) < 9 or schedule is SYNC or first.metrics.n_pending == 6)
    first = make_generation(target, draft, make_ending(N), Eager(4, 6, schedule))
    assert run(first) == TEXT
    assert first.local is not None
    n_before, n_read = len(draft.batches), draft.n_past
    assert n_read > len(PROMPT) + N / 2
    prompt, target = [*PROMPT, *TEXT, 5], FakeContext(n_batch=64)
    target.during = lambda: until(lambda: len(target.batches) != 2 or len(draft.batches) > n_before)
    assert run(Writing(target, first.local, make_ending(N), prompt=prompt)) == text_after(prompt, N)
    n_kept = min(n_read, len(prompt) - 1)
    assert draft.batches[n_before] == len(prompt) + 1 - n_kept


def test_a_draft_that_has_died_in_one_text_is_told_and_asked_again_in_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft = FakeContext(dying(3))
    first = make_generation(FakeContext(), draft, make_ending(N), Eager(4, 6, SYNC))
    assert run(first) == TEXT
    assert caplog.messages == ["the draft failed (the draft is dead): the target goes on alone"]
    draft.choose = next_token
    assert first.local is not None
    second = Writing(FakeContext(), first.local, make_ending(N))
    assert run(second) == TEXT
    assert second.metrics.draft_error is None
    assert draft_statistics(second).accept_rate == 1.0


def test_what_the_drafts_cache_holds_of_a_text_is_not_read_again() -> None:
    draft = FakeContext()
    draft.decode(PROMPT[:-1])
    drafter = Drafter(draft, make_queue(), Greedy(), N_VOCAB, Metrics(), PROMPT)
    assert drafter.step()
    assert draft.batches == [len(PROMPT) - 1, 1]
    assert drafter.cached == PROMPT


def test_what_it_holds_of_another_text_is_forgotten() -> None:
    draft = FakeContext()
    draft.decode([PROMPT[0], 9])
    drafter = Drafter(draft, make_queue(), Greedy(), N_VOCAB, Metrics(), [PROMPT[0], 9])
    assert drafter.step()
    assert draft.tokens == PROMPT


def test_an_interrupted_draft_gets_no_thread_in_the_same_text() -> None:
    """The interruption may fall between the loop's look at `stop` and the start of the thread."""
    draft = LocalDraft(Cache(FakeContext()), Eager(4, 6), THREADS)
    draft.begin(make_request())
    draft.interrupt()
    assert len(draft.candidates(100)) == 0
    assert draft_threads() == []
    draft.end()
    draft.begin(make_request())
    draft.candidates(100)
    assert len(draft_threads()) == 1, "the next text has one again"
    draft.end()

"""Which thread drives which model in each schedule, and what happens to a draft at a change, a failure and an end."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from duo.engine.statistics import INTERRUPTED
from duo.errors import DecodeError
from duo.speculation.modes import ALONE, Schedule
from duo.speculation.types import Origin
from tests.fakes import N_VOCAB, THREADS, Eager, FakeContext, Scripted, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Writing, begun, draft_threads, make_ending, run, until

N = 40
TEXT = text_after(PROMPT, N)
ME = threading.get_ident()

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert draft_threads() == []


def write(target: FakeContext, draft: FakeContext, policy: Eager | None = None, text: Sequence[int] = TEXT) -> Writing:
    """The generation that has written TEXT."""
    generation = Writing(target, draft, make_ending(len(text)), policy or Eager(4, 6))
    assert run(generation) == text
    return generation


def scripted(*schedules: Schedule, probes: Sequence[bool] = ()) -> Scripted:
    """The first schedules; the last one to the end."""
    return Scripted(4, 6, iter(schedules), iter(probes))


# Schedules


@pytest.mark.parametrize("right", [True, False])
def test_a_draft_that_is_off_is_probed_on_the_targets_thread(right: bool) -> None:
    draft = FakeContext(lambda prefix: (next_token(prefix) + 1 - right) % N_VOCAB, n_batch=64)
    policy = scripted(OFF, probes=[False] * 8 + [True] + [False] * 9 + [True])
    generation = write(FakeContext(), draft, policy)
    assert draft.threads == {ME}
    assert draft.batches == [len(PROMPT) + 9, 10]
    # Of each batch all that the target wrote is scored, but for a first token.
    assert policy.scores == [(5.0, right)] * (9 + 9)
    assert not any(step.n_candidates for step in generation.metrics.steps)


def test_a_draft_is_judged_only_by_tokens_that_the_lookup_did_not_find() -> None:
    draft, left = begun(FakeContext(n_batch=64), Eager(4, 6, OFF)), text_after(PROMPT, 12)
    for n, origin in ((1, Origin.DRAFT), (6, Origin.LOOKUP), (5, Origin.DRAFT)):
        draft.propose([draft.text])
        written, left = left[:n], left[n:]
        draft.wrote(*written, n_candidates=n - 1, origin=origin)
    draft.estimates.n_probe = 99
    probe = draft.propose([draft.text]).probe
    assert probe is not None
    assert len(probe.scores) == 12 - 5, "the last of each step is the target's own"
    draft.end()


def test_candidates_that_the_lookup_found_too_are_not_scored() -> None:
    estimates = Eager(4, 6, SYNC)
    draft, left = begun(FakeContext(), estimates), text_after(PROMPT, 4)
    for origin, n_scored in ((Origin.LOOKUP, 0), (Origin.DRAFT, 1)):
        draft.propose([draft.text])
        draft.wait(0.0)
        written, left = left[:2], left[2:]
        draft.wrote(*written, n_candidates=1, origin=origin)
        assert len(estimates.scores) == n_scored
    draft.end()


def test_a_change_to_sequential_aborts_the_draft_decode_and_joins_the_thread() -> None:
    inside, counts = threading.Event(), list[int]()
    target, draft = FakeContext(), FakeContext()

    def stay() -> None:
        if threading.get_ident() != ME:
            inside.set()
            until(lambda: draft.aborted)

    def during() -> None:
        counts.append(len(draft_threads()))
        assert len(target.batches) != 2 or inside.wait(30)

    target.during = during
    draft.during = stay
    generation = write(target, draft, scripted(ASYNC, SYNC))
    assert counts == [0, 1, *[0] * (len(target.batches) - 2)]
    assert not draft.aborted
    assert ME in draft.threads
    assert len(draft.threads) == 2
    assert generation.metrics.draft_error is None
    # There was no candidate before the change; after it all of them are right.
    assert [step.n_accepted for step in generation.metrics.steps][:6] == [0, 0, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("schedule", "separate_devices", "n_alive"),
    [(ASYNC, False, 0), (SYNC, False, 0), (SYNC, True, 0), (ASYNC, True, 1)],
)
def test_prefill_is_concurrent_only_on_separate_hardware(
    schedule: Schedule, separate_devices: bool, n_alive: int
) -> None:
    prompt = [token % N_VOCAB for token in range(20)]
    counts, done = list[tuple[int, bool]](), list[int]()
    target, draft = FakeContext(n_batch=4), FakeContext(n_batch=4)

    def during() -> None:
        if len(target.batches) <= 5:
            until(lambda: draft.batches or not n_alive)
            counts.append((len(draft_threads()), bool(draft.batches)))

    target.during = during
    threads = replace(THREADS, separate_devices=separate_devices)
    policy = Eager(3, 6, schedule)
    generation = Writing(target, draft, make_ending(N), policy, threads, prompt=prompt, on_prompt=done.append)
    assert run(generation) == text_after(prompt, N)
    assert counts == [(n_alive, bool(n_alive))] * 5
    assert (done, generation.metrics.n_prompt) == ([0, 4, 8, 12, 16], 20)
    assert target.teams[0] == THREADS.target_batch
    assert target.teams[-1] == (THREADS.concurrent[0] if schedule is ASYNC else THREADS.target)


# Drafts that end


def failing(n: int) -> Callable[[Sequence[int]], int]:
    """Right `n` times, then fails."""
    left = iter(range(n))

    def choose(prefix: Sequence[int]) -> int:
        if next(left, None) is None:
            raise DecodeError("the draft is dead")
        return next_token(prefix)

    return choose


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_after_a_failure_of_the_draft_the_target_continues_alone_to_the_end_of_the_text(
    schedule: Schedule, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    target, draft, estimates = FakeContext(), FakeContext(failing(n)), Eager(4, 60, schedule)
    if schedule is ASYNC:
        target.during = lambda: until(lambda: len(target.batches) < 2 or not draft_threads())
    generation = write(target, draft, estimates)
    assert generation.metrics.draft_error == "the draft is dead"
    assert "the draft is dead" in caplog.text
    assert generation.controller.mode == ALONE
    assert generation.metrics.steps[-1].schedule is OFF
    assert len(draft.batches) == n + 1, "it is not asked again"
    assert target.teams[-1] == THREADS.target, "the target has all the threads"
    draft.choose = next_token
    second = Writing(FakeContext(), generation.local, make_ending(N))
    assert run(second) == TEXT
    assert second.metrics.draft_error is None
    assert len(draft.batches) > n + 1


# Interruptions


@pytest.mark.parametrize("inside", [True, False], ids=["in a decode", "waiting"])
def test_an_interrupted_concurrent_draft_ends_while_the_target_decodes(inside: bool) -> None:
    stop, tokens = threading.Event(), list[int]()
    target, draft = FakeContext(), FakeContext()

    def during() -> None:
        if len(target.batches) == 4:
            until(lambda: len(draft.batches) > 3 if inside else generation.metrics.n_pending == 6)
            stop.set()
            generation.interrupt()
            until(lambda: not draft_threads())

    target.during = during
    draft.during = lambda: until(lambda: draft.aborted or len(draft.batches) <= 3) if inside else None
    generation = Writing(target, draft, make_ending(N))
    generation.run(lambda step: tokens.extend(step.tokens), stop)
    assert not draft.aborted
    assert len(target.batches) == 4
    assert tokens == TEXT[: len(tokens)]
    assert generation.metrics.stop == INTERRUPTED
    assert generation.metrics.draft_error is None

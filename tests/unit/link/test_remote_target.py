"""What a remote draft knows of the lead's text. A wait that is never woken would run into the joins' time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SamplingConfig
from duo.engine.draft_thread import DraftThread
from duo.engine.drafter import Drafter
from duo.engine.metrics import Metrics
from duo.errors import LinkError
from duo.link.messages import Begin, GuessMessage, Message, Text
from duo.link.remote_target import RemoteTarget
from duo.spec import types
from duo.spec.sampling import Greedy
from duo.spec.session import Session
from tests.fakes import N_VOCAB, FakeContext, next_token, text_after

SERIAL, EPOCH, N_AHEAD = 5, 2, 3
PROMPT = [3, 1, 4]

T = TypeVar("T")


class Bench:
    """A target, what it has sent, and how often it has cancelled the draft's decode."""

    def __init__(self, *, may_draft: bool = True, n_ahead: int = N_AHEAD) -> None:
        self.sent: list[Message] = []
        self.n_cancelled = 0
        begin = Begin(SERIAL, N_VOCAB, n_ahead, SamplingConfig(), [], EPOCH, list(PROMPT), may_draft)
        self.target = RemoteTarget(begin, self.sent.append, self._cancel)
        self.target.open()

    def _cancel(self) -> None:
        self.n_cancelled += 1

    def tell(self, position: int, tokens: Sequence[int], *, epoch: int = EPOCH, may_draft: bool = True) -> None:
        self.target.update(Text(SERIAL, epoch, position, list(tokens), may_draft))

    def guess(self, position: int, token: int = 7, epoch: int = EPOCH) -> bool:
        return self.target.publish(epoch, position, types.Guess(token, 1.5), 2, 0.25)

    def may_guess(self) -> bool:
        """Whether the draft would not have to wait."""
        return self.target._has_room() and self.target.wait_for_room()

    def fill(self) -> None:
        """Guess as far as it may."""
        for i in range(N_AHEAD):
            assert self.may_guess()
            self.guess(len(PROMPT) + i)
        assert not self.may_guess()


def wakes(target: RemoteTarget, act: Callable[[], object], wait: Callable[[], T]) -> T:
    """What `wait` returns on another thread, which sleeps when `act` is called."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(wait()), daemon=True)
    thread.start()
    while not target._changed._waiters:  # type: ignore[attr-defined]
        assert thread.is_alive(), "it does not sleep"
        time.sleep(0.001)
    act()
    thread.join(timeout=30)
    assert not thread.is_alive(), "the wake-up was lost"
    return results[0]


def test_the_draft_sees_the_text_as_far_as_the_lead_has_told_it() -> None:
    bench = Bench()
    assert bench.target.begin() == (EPOCH, PROMPT)
    assert bench.target.begin() == (EPOCH, [])
    bench.tell(3, [1, 5])
    assert bench.target.begin() == (EPOCH, [1, 5])
    bench.tell(5, [9])
    bench.tell(6, [2, 6], epoch=EPOCH + 1)
    assert bench.target.begin() == (EPOCH + 1, [9, 2, 6])
    assert bench.target.begin() == (EPOCH + 1, [])


def test_what_the_draft_is_given_is_its_own() -> None:
    bench = Bench()
    bench.target.begin()[1].append(99)
    bench.tell(3, [1])
    assert bench.target.begin() == (EPOCH, [1])


def test_a_guess_is_sent_as_it_is() -> None:
    bench = Bench()
    bench.target.begin()
    assert bench.guess(3)
    assert bench.sent == [GuessMessage(SERIAL, EPOCH, 3, 3, 7, 1.5, 2, 0.25)]


# Gaps


@pytest.mark.parametrize("position", [0, 2, 4, 2**31 - 1])
def test_what_does_not_follow_on_is_refused_and_changes_nothing(position: int) -> None:
    bench = Bench()
    bench.target.begin()
    with pytest.raises(LinkError, match=f"goes on at {position}, after 3 tokens"):
        bench.tell(position, [9], epoch=EPOCH + 1, may_draft=False)
    assert bench.n_cancelled == 0
    assert bench.target.begin() == (EPOCH, [])
    assert bench.may_guess()
    bench.tell(3, [9])
    assert bench.target.begin() == (EPOCH, [9])


def test_what_comes_twice_is_refused() -> None:
    bench = Bench()
    bench.tell(3, [9])
    with pytest.raises(LinkError):
        bench.tell(3, [9])


def test_an_order_without_tokens_is_none_too_many() -> None:
    bench = Bench()
    bench.tell(3, [])
    bench.tell(3, [], epoch=EPOCH + 1)
    assert bench.target.begin() == (EPOCH + 1, PROMPT)


# The window


def test_the_draft_guesses_as_far_ahead_as_it_may_and_sleeps() -> None:
    bench = Bench()
    bench.fill()
    assert wakes(bench.target, lambda: bench.tell(3, [7]), bench.target.wait_for_room) is True


def test_each_accepted_token_makes_room_for_one() -> None:
    bench = Bench()
    bench.fill()
    bench.tell(3, [7])
    assert bench.may_guess()
    bench.guess(6)
    assert not bench.may_guess()
    bench.tell(4, [7, 7])
    for position in (7, 8):
        assert bench.may_guess()
        bench.guess(position)
    assert not bench.may_guess()


@pytest.mark.parametrize("tokens", [[], [8], [7, 7, 7, 7, 7]])
def test_in_a_new_epoch_there_is_room_from_the_last_accepted_token_on(tokens: list[int]) -> None:
    bench = Bench()
    bench.fill()
    bench.tell(3, tokens, epoch=EPOCH + 1)
    first = 3 + len(tokens)
    for position in range(first, first + N_AHEAD):
        assert bench.may_guess()
        bench.guess(position, epoch=EPOCH + 1)
    assert not bench.may_guess()


def test_a_draft_that_was_overtaken_goes_no_farther_ahead_than_another() -> None:
    bench = Bench()
    bench.guess(3)
    bench.tell(3, [7, 7, 7, 7])
    for position in range(7, 7 + N_AHEAD):
        assert bench.may_guess()
        bench.guess(position)
    assert not bench.may_guess()


def test_a_guess_of_an_earlier_epoch_takes_no_room() -> None:
    bench = Bench()
    bench.target.begin()
    bench.tell(3, [8], epoch=EPOCH + 1)
    assert not bench.guess(6)
    for position in range(4, 4 + N_AHEAD):
        assert bench.may_guess()
        bench.guess(position, epoch=EPOCH + 1)
    assert not bench.may_guess()


@pytest.mark.parametrize("more", [0, 1])
def test_the_draft_sleeps_until_it_may_draft(more: int) -> None:
    bench = Bench(may_draft=False)
    assert wakes(bench.target, lambda: bench.tell(3, [7] * more), bench.target.wait_for_room) is True


def test_the_draft_sleeps_when_it_may_no_longer() -> None:
    bench = Bench()
    assert bench.may_guess()
    bench.tell(3, [7], may_draft=False)
    assert wakes(bench.target, lambda: bench.tell(4, []), bench.target.wait_for_room) is True


def test_a_draft_that_may_not_is_not_woken_by_tokens_alone() -> None:
    bench = Bench(may_draft=False)

    def act() -> None:
        bench.tell(3, [7], may_draft=False)
        bench.tell(4, [7], epoch=EPOCH + 1, may_draft=False)
        bench.target.close()

    assert wakes(bench.target, act, bench.target.wait_for_room) is False, "it was woken by something before the end"


# Guesses that came too late


def test_a_guess_of_an_earlier_epoch_is_not_sent() -> None:
    bench = Bench()
    bench.target.begin()
    bench.tell(3, [8], epoch=EPOCH + 1)
    assert not bench.guess(3)
    assert not bench.guess(3, epoch=EPOCH + 2)
    assert bench.sent == []


@pytest.mark.parametrize(("token", "right"), [(7, True), (8, False)])
def test_a_guess_of_what_is_written_already_is_sent_and_the_draft_told_if_it_is_wrong(token: int, right: bool) -> None:
    """The lead learns from it how often guesses are right."""
    bench = Bench()
    bench.target.begin()
    bench.tell(3, [7, 9])
    assert bench.guess(3, token) is right
    assert bench.sent == [GuessMessage(SERIAL, EPOCH, 3, 3, token, 1.5, 2, 0.25)]


# Cancelling


def test_the_guess_in_the_making_is_cancelled_when_the_epoch_changes() -> None:
    bench = Bench()
    bench.target.begin()
    bench.tell(3, [8], epoch=EPOCH + 1)
    assert bench.n_cancelled == 1


def test_the_guess_in_the_making_goes_on_while_the_epoch_stays() -> None:
    bench = Bench()
    bench.target.begin()
    bench.tell(3, [7, 9])
    bench.tell(5, [], may_draft=False)
    assert bench.n_cancelled == 0


def test_nothing_is_cancelled_when_nothing_is_in_the_making() -> None:
    bench = Bench()
    bench.tell(3, [8], epoch=EPOCH + 1)
    bench.target.begin()
    bench.guess(4, epoch=EPOCH + 1)
    bench.tell(4, [8], epoch=EPOCH + 2)
    assert bench.n_cancelled == 0, "it was published"
    bench.target.begin()
    bench.tell(5, [8], epoch=EPOCH + 3)
    assert bench.n_cancelled == 1
    bench.guess(5, epoch=EPOCH + 2)
    bench.tell(6, [8], epoch=EPOCH + 4)
    assert bench.n_cancelled == 1, "it was stale, and that was the end of it too"


# The end


def test_a_sleeping_draft_is_woken_by_the_end() -> None:
    bench = Bench(may_draft=False)
    assert wakes(bench.target, bench.target.close, bench.target.wait_for_room) is False


def test_after_the_end_there_is_no_room() -> None:
    bench = Bench()
    bench.target.close()
    bench.target.close()
    bench.tell(3, [7], epoch=EPOCH + 1)
    assert bench.target.wait_for_room() is False
    assert bench.sent == []


def test_nothing_is_sent_under_the_lock() -> None:
    """A connection that is full must not keep the lead's messages from being heard."""
    heard: list[int] = []

    def hear_meanwhile(_: Message) -> None:
        hearing = threading.Thread(target=lambda: target.update(Text(SERIAL, EPOCH, 3, [7], True)), daemon=True)
        hearing.start()
        hearing.join(timeout=30)
        heard.append(hearing.is_alive())

    begin = Begin(SERIAL, N_VOCAB, 3, SamplingConfig(), [], EPOCH, PROMPT, True)
    target = RemoteTarget(begin, hear_meanwhile, lambda: None)
    target.publish(EPOCH, 3, types.Guess(7, 1.0), 1, 0.1)
    assert heard == [False]
    assert target.begin() == (EPOCH, [*PROMPT, 7])


# All together


@dataclass
class Model:
    """What a remote target should know, in the simplest way that it can be written down."""

    epoch: int
    accepted: list[int]
    may_draft: bool
    last: int | None = None  # the position of the last guess in this epoch

    def has_room(self) -> bool:
        return self.may_draft and (self.last is None or self.last + 1 < len(self.accepted) + N_AHEAD)


events = st.one_of(
    st.tuples(st.just("text"), st.lists(st.integers(0, 3), max_size=4), st.booleans(), st.booleans()),
    st.tuples(st.just("begin")),
    st.tuples(st.just("guess"), st.integers(0, 3)),
)


@given(events=st.lists(events, max_size=40))
def test_any_order_of_events(events: list[tuple[object, ...]]) -> None:
    bench, model = Bench(), Model(EPOCH, list(PROMPT), may_draft=True)
    seen: list[int] = []
    begun: tuple[int, int] | None = None  # epoch and position of the guess in the making
    for event in events:
        n_cancelled, n_sent = bench.n_cancelled, len(bench.sent)
        match event:
            case ("text", list(tokens), bool(contradicts), bool(may_draft)):
                epoch = model.epoch + contradicts
                bench.tell(len(model.accepted), tokens, epoch=epoch, may_draft=may_draft)
                model.accepted += tokens
                model.may_draft = may_draft
                if contradicts:
                    model.epoch, model.last = epoch, None
                assert bench.n_cancelled - n_cancelled == (contradicts and begun is not None)
            case ("begin",) if begun is None and model.has_room():
                epoch, tokens = bench.target.begin()
                seen += tokens
                assert (epoch, seen) == (model.epoch, model.accepted)
                begun = epoch, max(len(seen), -1 if model.last is None else model.last + 1)
            case ("guess", int(token)) if begun is not None:
                epoch, position = begun
                begun = None
                right = position >= len(model.accepted) or model.accepted[position] == token
                fresh = epoch == model.epoch
                assert bench.guess(position, token, epoch) is (fresh and right)
                assert len(bench.sent) - n_sent == fresh
                if fresh:
                    model.last = position
        assert bench.may_guess() is model.has_room()


@pytest.mark.parametrize("every", [2, 5, 50])
def test_a_draft_and_its_lead_come_to_the_end_of_the_text(every: int) -> None:
    """A real draft thread, wrong at each `every`-th token, and a lead that takes one message after the other."""
    n_text = 60
    text = [*PROMPT, *text_after(PROMPT, n_text + N_AHEAD + 1)]
    arrived: queue.Queue[Message] = queue.Queue()
    context = FakeContext(lambda prefix: next_token(prefix, salt=len(prefix) % every == 0))
    target = RemoteTarget(
        Begin(SERIAL, N_VOCAB, N_AHEAD, SamplingConfig(), [], 0, list(PROMPT), True), arrived.put, context.cancel
    )
    session = Session(PROMPT, N_VOCAB)
    n_steps = 0
    with ExitStack() as drafting:
        thread = DraftThread(Drafter(context, target, Greedy(), N_VOCAB, Metrics()), target, context)
        drafting.enter_context(thread)
        while len(session.accepted) < n_text:
            guess = arrived.get(timeout=30)
            assert isinstance(guess, GuessMessage), thread.error
            session.offer(guess.epoch, guess.position, types.Guess(guess.token, guess.confidence), guess.n_known)
            n_before = len(session.accepted)
            if session.n_pending == N_AHEAD or not arrived.qsize():
                right = session.candidates(N_AHEAD).tokens
                n = next((i for i, token in enumerate(right) if token != text[n_before + i]), len(right))
                session.commit(text[n_before : n_before + n + 1], len(right))
                n_steps += 1
                target.update(Text(SERIAL, session.epoch, n_before, session.accepted[n_before:], True))
    assert thread.error is None
    assert session.accepted == text[: len(session.accepted)]
    assert n_steps < len(session.accepted) - len(PROMPT), "no guess was of use"
    assert context._busy.acquire(blocking=False), "its thread has ended"

"""RemoteTarget: what a remote draft knows of the lead's text, and how far it may draft."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SamplingConfig
from duo.errors import LinkError
from duo.link.messages import Begin, Message, Text
from duo.link.remote_target import RemoteTarget
from duo.spec import types
from tests.fakes import N_VOCAB

SERIAL, EPOCH, N_AHEAD = 5, 2, 3
PROMPT = [3, 1, 4]


class Watched(RemoteTarget):
    """Tells when a thread has looked for room: without any, it sleeps before another thread gets the lock."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.looked = threading.Event()

    def _has_room(self) -> bool:
        self.looked.set()
        return super()._has_room()


class Bench:
    """A target, what it has sent, and how often it has cancelled the draft's decode."""

    def __init__(self, *, may_draft: bool = True) -> None:
        self.sent: list[Message] = []
        self.n_cancelled = 0
        begin = Begin(SERIAL, N_VOCAB, N_AHEAD, SamplingConfig(), [], EPOCH, list(PROMPT), may_draft)
        self.target = Watched(begin, self.sent.append, self._cancel)
        self.target.open()

    def _cancel(self) -> None:
        self.n_cancelled += 1

    def tell(self, position: int, tokens: Sequence[int], *, epoch: int = EPOCH, may_draft: bool = True) -> None:
        self.target.update(Text(SERIAL, epoch, position, list(tokens), may_draft))

    def draft(self, position: int, token: int = 7, epoch: int = EPOCH) -> bool:
        return self.target.publish(epoch, position, types.Guess(token, 1.5), 2, 0.25)

    def has_room(self) -> bool:
        """Whether the draft would not have to wait."""
        return self.target._has_room() and self.target.wait_for_room()

    def woken_by(self, act: Callable[[], object]) -> bool:
        """What wait_for_room() returns on another thread, which sleeps when `act` is called."""
        results: list[bool] = []
        self.target.looked.clear()
        thread = threading.Thread(target=lambda: results.append(self.target.wait_for_room()), daemon=True)
        thread.start()
        assert self.target.looked.wait(60)
        act()
        thread.join(60)
        assert not thread.is_alive(), "the wake-up was lost"
        return results[0]


def full() -> Bench:
    """A draft that is as far ahead as it may be."""
    bench = Bench()
    for i in range(N_AHEAD):
        assert bench.has_room()
        bench.draft(len(PROMPT) + i)
    assert not bench.has_room()
    return bench


@pytest.mark.parametrize("position", [0, 2, 4, 2**31 - 1])
def test_a_gap_or_a_duplicate_is_refused_and_changes_nothing(position: int) -> None:
    bench = Bench()
    bench.target.begin()
    with pytest.raises(LinkError, match=f"{position} after 3 tokens"):
        bench.tell(position, [9], epoch=EPOCH + 1, may_draft=False)
    assert bench.n_cancelled == 0
    assert bench.has_room()
    bench.tell(3, [9])
    assert bench.target.begin()[:2] == (EPOCH, [9])


# Waking


def test_an_accepted_token_wakes_the_draft() -> None:
    bench = full()
    assert bench.woken_by(lambda: bench.tell(3, [7])) is True
    assert bench.has_room()
    bench.draft(6)
    assert not bench.has_room(), "each makes room for one"


@pytest.mark.parametrize("n", [0, 1])
def test_an_order_to_continue_wakes_the_draft(n: int) -> None:
    bench = Bench(may_draft=False)
    assert bench.woken_by(lambda: bench.tell(3, [7] * n)) is True


def test_tokens_alone_do_not_wake_a_draft_that_may_not_draft_but_the_end_does() -> None:
    bench = Bench(may_draft=False)

    def act() -> None:
        bench.tell(3, [7], may_draft=False)
        bench.tell(4, [7], epoch=EPOCH + 1, may_draft=False)
        bench.target.close()

    assert bench.woken_by(act) is False, "it was woken before the end"


def test_nothing_is_sent_under_the_lock() -> None:
    """A connection that blocks must not keep the lead's messages from being handled."""
    blocked: list[bool] = []

    def send(_: Message) -> None:
        update = threading.Thread(target=lambda: target.update(Text(SERIAL, EPOCH, 3, [7], True)), daemon=True)
        update.start()
        update.join(timeout=30)
        blocked.append(update.is_alive())

    target = RemoteTarget(Begin(SERIAL, N_VOCAB, 3, SamplingConfig(), [], EPOCH, PROMPT, True), send, lambda: None)
    target.publish(EPOCH, 3, types.Guess(7, 1.0), 1, 0.1)
    assert blocked == [False]
    assert target.begin()[:2] == (EPOCH, [*PROMPT, 7])


# All orders of events


@dataclass
class Model:
    """What a remote target should know, as simply as possible."""

    epoch: int
    accepted: list[int]
    may_draft: bool
    last: int | None = None  # the position of the last candidate in this epoch

    def has_room(self) -> bool:
        return self.may_draft and (self.last is None or self.last + 1 < len(self.accepted) + N_AHEAD)


events = st.one_of(
    st.tuples(st.just("text"), st.lists(st.integers(0, 3), max_size=4), st.booleans(), st.booleans()),
    st.tuples(st.just("begin")),
    st.tuples(st.just("draft"), st.integers(0, 3)),
)


@given(events=st.lists(events, max_size=40))
def test_any_order_of_events(events: list[tuple[object, ...]]) -> None:
    bench, model = Bench(), Model(EPOCH, list(PROMPT), may_draft=True)
    seen: list[int] = []
    begun: tuple[int, int] | None = None  # epoch and position of the candidate that is being drafted
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
                epoch, tokens, *_ = bench.target.begin()
                seen += tokens
                assert (epoch, seen) == (model.epoch, model.accepted)
                begun = epoch, max(len(seen), -1 if model.last is None else model.last + 1)
            case ("draft", int(token)) if begun is not None:
                epoch, position = begun
                begun = None
                right = position >= len(model.accepted) or model.accepted[position] == token
                fresh = epoch == model.epoch
                assert bench.draft(position, token, epoch) is (fresh and right)
                assert len(bench.sent) - n_sent == fresh
                if fresh:
                    model.last = position
        assert bench.has_room() is model.has_room()

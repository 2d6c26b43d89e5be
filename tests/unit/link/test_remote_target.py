"""RemoteTarget: what a remote draft knows of the lead's text, and how far it may draft."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
from tests.unit.engine.helpers import until

SERIAL, EPOCH, N_AHEAD = 5, 2, 3
PROMPT = [3, 1, 4]


class Bench:
    """A target, what it has sent, and how often it has cancelled the draft's decode."""

    def __init__(self, *, may_draft: bool = True) -> None:
        self.sent: list[Message] = []
        self.n_cancelled = 0
        begin = Begin(SERIAL, N_VOCAB, N_AHEAD, SamplingConfig(), [], EPOCH, list(PROMPT), may_draft)
        self.target = RemoteTarget(begin, self.sent.append, self._cancel)

    def _cancel(self) -> None:
        self.n_cancelled += 1

    def tell(self, position: int, tokens: Sequence[int], *, epoch: int = EPOCH, may_draft: bool = True) -> None:
        self.target.update(Text(SERIAL, epoch, position, list(tokens), may_draft))

    def draft(self, position: int, token: int = 7, epoch: int = EPOCH) -> bool:
        return self.target.publish(epoch, position, types.Guess(token, 1.5), 2, 0.25)

    def has_room(self) -> bool:
        """Whether the draft would not have to wait."""
        return self.target._has_room() and self.target.wait_for_room()


def test_a_gap_or_a_duplicate_is_refused() -> None:
    bench = Bench()
    for position in (0, 2, 4, 2**31 - 1):
        with pytest.raises(LinkError, match=f"{position} after 3 tokens"):
            bench.tell(position, [9], epoch=EPOCH + 1, may_draft=False)
    assert bench.has_room()


def test_an_order_to_continue_and_the_end_wake_the_draft_and_tokens_alone_do_not() -> None:
    bench, woken = Bench(may_draft=False), list[bool]()
    thread = threading.Thread(target=lambda: woken.extend(bench.target.wait_for_room() for _ in range(2)), daemon=True)
    thread.start()
    bench.tell(3, [7], may_draft=False)
    bench.tell(4, [7], epoch=EPOCH + 1, may_draft=False)
    assert woken == []
    bench.tell(5, [])
    until(lambda: woken)
    bench.target.close()
    thread.join(60)
    assert woken[0]
    assert not thread.is_alive()


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

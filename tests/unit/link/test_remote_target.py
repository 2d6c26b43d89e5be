"""RemoteTarget: what a remote draft knows of the lead's text, and how far it may draft."""

from __future__ import annotations

import threading

import pytest

from duo.config import SamplingConfig
from duo.errors import LinkError
from duo.link.client import RemoteTarget
from duo.link.messages import Begin, GuessMessage, Message, Text
from duo.spec import types
from tests.fakes import N_VOCAB
from tests.unit.engine.helpers import until

SERIAL, EPOCH, N_AHEAD = 5, 2, 3
PROMPT = [3, 1, 4]


class Bench(RemoteTarget):
    """One that counts what it has sent, and how often it has cancelled the draft's decode."""

    def __init__(self, *, may_draft: bool = True) -> None:
        self.sent: list[Message] = []
        self.n_cancelled = 0
        begin = Begin(SERIAL, N_VOCAB, N_AHEAD, SamplingConfig(), [], EPOCH, list(PROMPT), may_draft)
        super().__init__(begin, self.send, self.cancel)

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def cancel(self) -> None:
        self.n_cancelled += 1

    @property
    def position(self) -> int:
        return self._next

    def tell(
        self, position: int, tokens: list[int], *, serial: int = SERIAL, epoch: int = EPOCH, may_draft: bool = True
    ) -> None:
        self.update(Text(serial, epoch, position, tokens, may_draft))


def test_an_order_to_continue_and_the_end_wake_the_draft_and_tokens_alone_do_not() -> None:
    bench, woken = Bench(may_draft=False), list[bool]()
    thread = threading.Thread(target=lambda: woken.extend(bench.wait_for_room() for _ in range(2)), daemon=True)
    thread.start()
    bench.tell(3, [7], may_draft=False)
    bench.tell(4, [7], epoch=EPOCH + 1, may_draft=False)
    assert woken == []
    bench.tell(5, [])
    until(lambda: woken)
    bench.close()
    thread.join(60)
    assert woken[0]
    assert not thread.is_alive()


def test_nothing_is_sent_under_the_lock() -> None:
    """A connection that blocks must not keep the lead's messages from being handled."""

    class Blocked(Bench):
        def send(self, message: Message) -> None:
            update = threading.Thread(target=lambda: self.tell(3, [7]), daemon=True)
            update.start()
            update.join(timeout=30)
            assert not update.is_alive()

    target = Blocked()
    target.publish(EPOCH, 3, types.Guess(7, 1.0), 1, 0.1)
    assert target.begin()[:2] == (EPOCH, [*PROMPT, 7])


def draft(bench: Bench, token: int, epoch: int = EPOCH) -> tuple[list[int], bool]:
    """Draft one token: what the draft is told before, and whether its token was of use."""
    told = bench.begin()
    assert told.epoch == epoch
    return told.tokens, bench.publish(EPOCH, bench.position, types.Guess(token, 1.5), 2, 0.25)


def test_a_draft_runs_ahead_until_it_is_contradicted() -> None:
    bench = Bench()
    assert draft(bench, 1) == (PROMPT, True)
    bench.tell(3, [1])
    assert draft(bench, 5) == ([1], True)
    assert bench.sent[-1] == GuessMessage(SERIAL, EPOCH, 4, 4, 5, 1.5, 2, 0.25)
    bench.tell(4, [5, 2])
    assert draft(bench, 7) == ([5, 2], False), "it comes late and is wrong, which the lead learns from"
    for _ in range(N_AHEAD):
        assert bench.has_room
        draft(bench, 0)
    assert (bench.has_room, bench.n_cancelled, len(bench.sent)) == (False, 0, 3 + N_AHEAD)
    bench.tell(6, [], serial=SERIAL - 1, epoch=9)
    bench.tell(6, [8], epoch=EPOCH + 1)
    assert (bench.has_room, bench.n_cancelled) == (True, 1)
    assert draft(bench, 0, EPOCH + 1) == ([8], False), "of the old epoch"
    assert len(bench.sent) == 3 + N_AHEAD
    with pytest.raises(LinkError, match="after 7 tokens"):
        bench.tell(8, [9], epoch=EPOCH + 2)
    bench.tell(7, [], epoch=EPOCH + 1, may_draft=False)
    assert not bench.has_room

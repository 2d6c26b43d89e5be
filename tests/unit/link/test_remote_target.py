"""RemoteTarget: what a remote draft knows of the lead's text, and how far it may draft."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SamplingConfig
from duo.errors import LinkError
from duo.link.client import RemoteTarget
from duo.link.messages import Begin, Message, Text
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

    def tell(self, position: int, tokens: list[int], *, epoch: int = EPOCH, may_draft: bool = True) -> None:
        self.update(Text(SERIAL, epoch, position, tokens, may_draft))


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


events = st.one_of(
    st.tuples(st.just("text"), st.lists(st.integers(0, 3), max_size=4), st.booleans(), st.booleans()),
    st.tuples(st.just("gap"), st.sampled_from([-1, 1, 2**30])),
    st.tuples(st.just("begin")),
    st.tuples(st.just("draft"), st.integers(0, 3)),
)


@given(events=st.lists(events, max_size=40))
def test_any_order_of_events(events: list[tuple[object, ...]]) -> None:
    """Compared with what it should know, as simply as possible."""
    bench, seen = Bench(), list[int]()
    epoch, accepted, may_draft = EPOCH, list(PROMPT), True
    following = len(accepted)  # the position after the last candidate
    begun: tuple[int, int] | None = None  # epoch and position of the candidate that is being drafted
    for event in events:
        n_cancelled, n_sent = bench.n_cancelled, len(bench.sent)
        match event:
            case ("text", list(tokens), bool(contradicts), bool(may_draft)):
                epoch += contradicts
                bench.tell(len(accepted), tokens, epoch=epoch, may_draft=may_draft)
                accepted += tokens
                following = len(accepted) if contradicts else following
                assert bench.n_cancelled - n_cancelled == contradicts
            case ("gap", int(n)):
                with pytest.raises(LinkError, match=f"after {len(accepted)} tokens"):
                    bench.tell(len(accepted) + n, [9], epoch=EPOCH + 1, may_draft=False)
            case ("begin",) if begun is None and bench.has_room:
                told, tokens, *_ = bench.begin()
                seen += tokens
                assert (told, seen) == (epoch, accepted)
                begun = epoch, max(len(accepted), following)
            case ("draft", int(token)) if begun is not None:
                (begun_in, position), begun = begun, None
                right = position >= len(accepted) or accepted[position] == token
                is_fresh = begun_in == epoch
                found = bench.publish(begun_in, position, types.Guess(token, 1.5), 2, 0.25)
                assert (found, len(bench.sent) - n_sent) == (is_fresh and right, is_fresh)
                following = position + 1 if is_fresh else following
        assert bench.has_room is (may_draft and following < len(accepted) + N_AHEAD)
        assert not bench.has_room or bench.wait_for_room()

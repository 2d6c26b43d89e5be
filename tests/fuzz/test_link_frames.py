"""Conversations between a lead and a remote draft: valid messages in any order, whose numbers are lies.

Single messages, valid and not, are in tests/unit/link/test_messages.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SamplingConfig
from duo.link import messages
from duo.link.client import DraftClient
from duo.link.messages import Alive, Begin, End, GuessMessage, Message, Refused, Text, Unable, Welcome
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from tests.fakes import N_VOCAB, Eager, FakeContext
from tests.fuzz.cases import cases, record
from tests.unit.engine.helpers import until
from tests.unit.link.backs import N_AHEAD, TRUTH, Back, N, Stage, candidate, hello
from tests.unit.link.test_messages import samplings

MOST = 2**31 - 1
ENDS = {"dropped: left", "dropped: garbage", "dropped: flood"}

# A draft that lies to a lead

small = st.integers(-3, 3)
far = st.sampled_from([0, 0, 0, 0, 0, 1, -1, 2, MOST])  # most messages are about the current text
lies = record(
    {
        "token": st.integers(0, N_VOCAB),
        "confidence": st.floats(allow_nan=False, allow_infinity=False),
        "n_tokens": st.sampled_from([0, 1, MOST]),
        "seconds": st.floats(0, 3600),
    },
    serial=far, epoch=far, n_known=small, position=small,
)  # fmt: skip
chains = st.integers(1, 2 * N_AHEAD).map(lambda n: [{"position": i} for i in range(n)])
draft_acts = st.one_of(
    st.tuples(st.just("candidates"), chains | st.tuples(lies)),
    *(st.tuples(st.just("decode"), st.none()) for _ in range(2)),
    st.tuples(st.sampled_from(["alive", "unable"]), far),
    st.tuples(st.sampled_from(["hello", "leave", "end of text"]), st.none()),
)


class Liar:
    """A draft that knows the text, and says what it is told to."""

    def __init__(self, stage: Stage, back: Back) -> None:
        self._stage, self._back = stage, back
        self._begin = Begin(1, N_VOCAB, N_AHEAD, SamplingConfig(), [], 0, [], True)
        self._epoch = self._n_accepted = 0

    def write(self) -> None:
        """Begin a text, each of whose decodes waits for one of act()."""
        self._may_decode, self._n_decodes = threading.Semaphore(0), 0

        def decode() -> None:
            self._n_decodes += 1
            assert self._may_decode.acquire(timeout=60)

        self._stage.target.batches.clear()
        self._stage.begin(decode)
        self._stage.go_on()

    def finish(self) -> None:
        """The text is the target's own."""
        self._may_decode.release(2 * N)
        self._stage.finish()

    def act(self, what: str, lie: Any) -> None:
        for message in self._back.heard():
            if isinstance(message, Begin):
                self._begin, self._epoch, self._n_accepted = message, message.epoch, len(message.tokens)
            elif isinstance(message, Text):
                self._epoch, self._n_accepted = message.epoch, message.position + len(message.tokens)
        serial, say = self._begin.serial, self._back.say
        match what:
            case "candidates":
                say(*(self._candidate(**each) for each in lie))
            case "decode":
                n = self._n_decodes
                self._may_decode.release()
                until(lambda: self._n_decodes > n or self._stage.has_written)
            case "alive" | "unable":
                say((Alive if what == "alive" else Unable)(_number(serial + lie)))
            case "hello":
                say(hello())
            case "leave":
                self._back.leave()
            case _:
                self.finish()
                self.write()

    def _candidate(
        self, serial: int = 0, epoch: int = 0, n_known: int = 0, position: int = 0, **lies: Any
    ) -> GuessMessage:
        """A right candidate, but for these lies; the numbers are added to the true ones."""
        n = self._n_accepted
        position = max(0, n + position)
        numbers = {"serial": _number(self._begin.serial + serial), "epoch": _number(self._epoch + epoch)}
        lies = {"token": TRUTH.get(position, 0)} | lies | numbers
        return candidate(self._begin, position=position, n_known=max(0, n + n_known), **lies)


def _number(value: int) -> int:
    return min(max(0, value), MOST)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@cases(2000)
@given(acts=st.lists(draft_acts, max_size=30), is_eager=st.booleans())
def test_a_draft_that_lies_changes_no_text(stage: Stage, acts: list[tuple[str, Any]], is_eager: bool) -> None:
    schedules = (Schedule.ASYNC,)
    stage.drafts.make_policy = lambda: Eager(4, N_AHEAD) if is_eager else Policy(4, N_AHEAD, schedules, remote=True)
    before = stage.drafts.counts
    with stage.back() as back:
        liar = Liar(stage, back.join())
        liar.write()
        try:
            for act in acts:
                liar.act(*act)
        finally:
            liar.finish()
    until(lambda: not stage.drafts.connected)
    ended = stage.drafts.counts - before
    assert sum(n for what, n in ended.items() if what in ENDS) == 1, ended


# A lead that lies to a draft

numbers = st.sampled_from([0, 1, 2, 5, N_VOCAB, MOST])
tokens = st.lists(st.integers(0, N_VOCAB - 1) | numbers, max_size=40)
begins = st.builds(Begin, numbers, numbers, numbers, samplings, tokens, numbers, tokens, st.booleans())
good = samplings.map(lambda sampling: Begin(1, N_VOCAB, 4, sampling, [], 0, [3, 1, 4], True))
texts = st.builds(Text, st.just(1), numbers, st.sampled_from([3, 3, 3, 4, 5, 0, MOST]), tokens, st.booleans())
lead_acts = st.one_of(
    good, texts, texts, begins, st.builds(End, numbers), st.builds(Welcome, numbers), st.just(Refused("no")), st.none()
)


class Connection:
    """A connection on which a lead says what it is told to, or waits; which then ends the client."""

    socket = SimpleNamespace(shutdown=lambda _: None)
    client: DraftClient

    def __init__(self, acts: list[Message | None]) -> None:
        self._acts = acts
        self.sent: list[messages.FromDraft] = []

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop()

    def send(self, data: bytes) -> None:
        self.sent.append(messages.from_draft(data))

    def recv(self, timeout: float) -> bytes:
        return messages.encode(Welcome(30))

    def __iter__(self) -> Iterator[bytes]:
        for act in self._acts:
            n, end = len(self.sent), time.monotonic() + 0.002
            while act is None and len(self.sent) == n and time.monotonic() < end:
                time.sleep(0.0005)
            if act is not None:
                yield messages.encode(act)


@cases(2000)
@given(acts=st.lists(lead_acts, max_size=20))
def test_a_lead_that_lies_ends_at_most_the_connection(acts: list[Message | None]) -> None:
    connection = Connection(acts)
    begun = {act.serial for act in acts if isinstance(act, Begin)}
    client = DraftClient("lead:1", hello(), lambda n_ctx: cast(Any, FakeContext(n_ctx=n_ctx, n_batch=8)))
    connection.client = client
    with mock.patch("duo.link.client.connect", return_value=connection):
        client.run()
        assert not any(thread.name == "duo-draft" for thread in threading.enumerate())
    for message in connection.sent[1:]:
        assert isinstance(message, GuessMessage | Alive | Unable)
        assert message.serial in begun or isinstance(message, Alive)
        assert not isinstance(message, GuessMessage) or message.token < N_VOCAB

"""Conversations between a lead and a remote draft: valid messages in any order, whose numbers are lies.

Single messages, valid and not, are in tests/unit/link/test_messages.py.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SAMPLERS, SamplingConfig
from duo.link import messages
from duo.link.client import DraftClient
from duo.link.messages import Alive, Begin, End, GuessMessage, Message, Refused, Text, Unable, Welcome
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from tests.fakes import N_VOCAB, Eager, FakeContext
from tests.fuzz.cases import cases
from tests.unit.engine.helpers import until
from tests.unit.link.backs import N_AHEAD, TRUTH, Back, N, Stage, candidate, hello

MOST = 2**31 - 1
ENDS = {"dropped: left", "dropped: garbage", "dropped: flood"}

small = st.integers(-3, 3)
far = st.sampled_from([0, 0, 0, 0, 0, 1, -1, 2, MOST])  # most messages are about the current text

# A draft that lies to a lead

candidates = st.fixed_dictionaries(
    {"serial": far, "epoch": far, "n_known": small, "position": small},
    optional={
        "token": st.integers(0, N_VOCAB),
        "confidence": st.floats(allow_nan=False, allow_infinity=False),
        "n_tokens": st.sampled_from([0, 1, MOST]),
        "seconds": st.floats(0, 3600),
    },
)
draft_acts = st.one_of(
    st.tuples(st.just("candidate"), candidates),
    st.tuples(st.just("chain"), st.integers(1, 2 * N_AHEAD)),
    st.tuples(st.just("decode"), st.none()),
    st.tuples(st.just("decode"), st.none()),
    st.tuples(st.sampled_from(["alive", "unable"]), far),
    st.tuples(st.sampled_from(["hello", "leave", "end of text"]), st.none()),
)


class Liar:
    """A draft that knows the text, and says what it is told to."""

    def __init__(self, stage: Stage, back: Back) -> None:
        self._stage, self._back = stage, back
        self._may_decode = threading.Semaphore(0)
        self._n_decodes = 0
        self._begin = Begin(1, N_VOCAB, N_AHEAD, SamplingConfig(), [], 0, [], True)
        self._epoch = self._n_accepted = 0

    def write(self) -> None:
        """Begin a text, each of whose decodes waits for step()."""

        def decode() -> None:
            self._n_decodes += 1
            assert self._may_decode.acquire(timeout=60)

        self._n_decodes = 0
        self._stage.target.batches.clear()
        self._stage.begin(decode)
        self._stage.go_on()

    def finish(self) -> None:
        """The text is the target's own."""
        self._may_decode.release(2 * N)
        self._stage.finish()
        while self._may_decode.acquire(blocking=False):
            pass

    def act(self, what: str, lie: Any) -> None:
        self._listen()
        begin, first = self._begin, self._n_accepted
        if what == "candidate":
            position = max(0, first + lie["position"])
            numbers = {
                "serial": min(max(0, begin.serial + lie["serial"]), MOST),
                "epoch": min(max(0, self._epoch + lie["epoch"]), MOST),
                "n_known": max(0, first + lie["n_known"]),
                "position": position,
            }
            self._back.say(candidate(begin, **({"token": TRUTH.get(position, 0)} | lie | numbers)))
        elif what == "chain":
            where = {"epoch": self._epoch, "n_known": first}
            chain = ((first + i, TRUTH.get(first + i, 0)) for i in range(lie))
            self._back.say(*(candidate(begin, position=i, token=token, **where) for i, token in chain))
        elif what == "decode":
            n = self._n_decodes
            self._may_decode.release()
            until(lambda: self._n_decodes > n or self._stage.has_written)
        elif what in ("alive", "unable"):
            serial = min(max(0, begin.serial + lie), MOST)
            self._back.say(Alive(serial) if what == "alive" else Unable(serial))
        elif what == "hello":
            self._back.say(hello())
        elif what == "leave":
            self._back.leave()
        else:
            self.finish()
            self.write()

    def _listen(self) -> None:
        for message in self._back.heard():
            if isinstance(message, Begin):
                self._begin, self._epoch, self._n_accepted = message, message.epoch, len(message.tokens)
            elif isinstance(message, Text):
                self._epoch, self._n_accepted = message.epoch, message.position + len(message.tokens)


class Errors(logging.Handler):
    """Internal errors that the lead has logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@pytest.fixture(scope="module")
def errors() -> Iterator[list[str]]:
    handler, log = Errors(), logging.getLogger("duo")
    log.addHandler(handler)
    yield handler.found
    log.removeHandler(handler)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@cases(2000)
@given(acts=st.lists(draft_acts, max_size=30), is_eager=st.booleans())
def test_a_draft_that_lies_changes_no_text(
    stage: Stage, errors: list[str], acts: list[tuple[str, Any]], is_eager: bool
) -> None:
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
    until(lambda: stage.drafts.n_connected == 0)
    ended = stage.drafts.counts - before
    assert sum(n for what, n in ended.items() if what in ENDS) == 1, ended
    assert not errors


# A lead that lies to a draft

numbers = st.sampled_from([0, 1, 2, 5, N_VOCAB, MOST])
tokens = st.lists(st.integers(0, N_VOCAB - 1) | numbers, max_size=40)
samplings = st.builds(
    SamplingConfig,
    temp=st.sampled_from([0.0, 0.8, 1e6]),
    top_k=st.sampled_from([0, 1, 40, MOST]),
    repeat_penalty=st.sampled_from([1.0, 1.1]),
    repeat_last_n=st.sampled_from([0, 64, MOST]),
    logit_bias=st.lists(st.tuples(numbers, st.sampled_from([-math.inf, -1e6, 0.5, 1e6])), max_size=3).map(tuple),
    samplers=st.permutations(SAMPLERS).map(tuple),
    seed=st.integers(0, 2**63 - 1),
)
begins = st.builds(Begin, numbers, numbers, numbers, samplings, tokens, numbers, tokens, st.booleans())
good = st.builds(
    Begin, st.just(1), st.just(N_VOCAB), st.just(4), samplings, st.just([]), st.just(0),
    st.just([3, 1, 4]), st.just(True),
)  # fmt: skip
texts = st.builds(Text, st.just(1), numbers, st.sampled_from([3, 3, 3, 4, 5, 0, MOST]), tokens, st.booleans())
lead_acts = st.one_of(
    good, texts, texts, begins, st.builds(End, numbers), st.builds(Welcome, numbers),
    st.builds(Refused, st.just("no")), st.just("wait"),
)  # fmt: skip


class Connection:
    """A connection on which a lead says what it is told to."""

    socket = SimpleNamespace(shutdown=lambda _: None)

    def __init__(self, acts: list[Message | str], client: list[DraftClient]) -> None:
        self._acts, self._client = acts, client
        self.sent: list[messages.FromDraft] = []

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._client[0].stop()

    def send(self, data: bytes) -> None:
        self.sent.append(messages.from_draft(data))

    def recv(self, timeout: float) -> bytes:
        return messages.encode(Welcome(30))

    def close(self) -> None:
        """It holds nothing."""

    def __iter__(self) -> Iterator[bytes]:
        for act in self._acts:
            if isinstance(act, Message):
                yield messages.encode(act)
            else:
                n, end = len(self.sent), time.monotonic() + 0.002
                while len(self.sent) == n and time.monotonic() < end:
                    time.sleep(0.0005)


@cases(2000)
@given(acts=st.lists(lead_acts, max_size=20))
def test_a_lead_that_lies_ends_at_most_the_connection(acts: list[Message | str]) -> None:
    made: list[DraftClient] = []
    connection = Connection(acts, made)
    begun = {act.serial for act in acts if isinstance(act, Begin)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duo.link.client.connect", lambda *_, **__: connection)
        client = DraftClient("lead:1", hello(), lambda n_ctx: cast(Any, FakeContext(n_ctx=n_ctx, n_batch=8)))
        made.append(client)
        client.run()
        assert not any(thread.name == "duo-draft" for thread in threading.enumerate())
    for message in connection.sent[1:]:
        assert isinstance(message, GuessMessage | Alive | Unable)
        assert message.serial in begun or isinstance(message, Alive)
        assert not isinstance(message, GuessMessage) or message.token < N_VOCAB

"""A lead that lies to a remote draft: valid messages in any order, whose numbers are lies.

Single messages are in tests/unit/remote/test_messages.py, drafts that lie in tests/unit/remote/test_connection.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from duo.remote import messages
from duo.remote.messages import (
    Ahead,
    Alive,
    Begin,
    CandidateMessage,
    End,
    Message,
    Refused,
    Text,
    Times,
    Unable,
    Welcome,
)
from duo.remote.worker import DraftWorker
from tests.fakes import CERTAIN, N_VOCAB, RANKS, FakeContext
from tests.fuzz.cases import cases
from tests.unit.remote.test_messages import aheads, samplings
from tests.unit.remote.workers import hello

MOST = 2**31 - 1

numbers = st.sampled_from([0, 1, 2, 5, N_VOCAB, MOST])
PREPARING = Ahead(4, 0.0, CERTAIN, 8, RANKS)
tokens = st.lists(st.integers(0, N_VOCAB - 1) | numbers, max_size=40)
begins = st.builds(Begin, numbers, numbers, samplings, tokens, numbers, tokens, st.booleans(), aheads)
good = samplings.map(lambda sampling: Begin(1, N_VOCAB, sampling, [], 0, [3, 1, 4], True, PREPARING))
texts = st.builds(
    Text, st.just(1), numbers, st.sampled_from([3, 3, 3, 4, 5, 0, MOST]), tokens, st.booleans(), numbers, aheads
)
lead_acts = st.one_of(
    good, texts, texts, begins, st.builds(End, numbers), st.builds(Welcome, numbers), st.just(Refused("no")), st.none()
)


class Connection:
    """A connection on which a lead says what it is told to, or waits; which then ends the client."""

    socket = SimpleNamespace(shutdown=lambda _: None)
    client: DraftWorker

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

    def make(n_ctx: int) -> FakeContext:
        return FakeContext(n_ctx=n_ctx, n_batch=16, n_branches=8, others=lambda _: [1, 2, 3])

    client = DraftWorker("lead:1", hello(), make)
    connection.client = client
    with mock.patch("duo.remote.worker.connect", return_value=connection):
        client.run()
        assert not any(thread.name == "duo-draft" for thread in threading.enumerate())
    for message in connection.sent[1:]:
        assert isinstance(message, CandidateMessage | Alive | Unable | Times)
        assert isinstance(message, Alive | Times) or message.serial in begun
        assert not isinstance(message, CandidateMessage) or (message.token or 0) < N_VOCAB

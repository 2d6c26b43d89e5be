"""A draft that works for a lead: what it says of itself."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from websockets.sync.client import ClientConnection

from duo.config import SamplingConfig
from duo.engine.cache import Cache
from duo.link import messages
from duo.link.client import _Drafting
from duo.link.messages import Begin, Unable
from tests.fakes import N_VOCAB, FakeContext

BEGIN = Begin(5, N_VOCAB, 3, SamplingConfig(), [], 0, [3, 1, 4], True)


class Connection:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[messages.FromDraft] = []
        self.unable = threading.Event()

    def send(self, data: bytes) -> None:
        self.sent.append(messages.from_draft(data))
        if isinstance(self.sent[-1], Unable):
            self.unable.set()


def fail() -> None:
    raise RuntimeError("no memory")


def test_a_draft_that_dies_says_that_it_can_guess_no_more(caplog: pytest.LogCaptureFixture) -> None:
    connection, context = Connection(), FakeContext(during=fail)
    with _Drafting(Cache(context), BEGIN, cast(ClientConnection, connection)):
        assert connection.unable.wait(60)
    assert connection.sent == [Unable(BEGIN.serial)]
    assert "the draft failed: no memory" in caplog.text
    assert "Traceback" in caplog.text


def test_a_draft_that_is_ended_says_nothing_of_that() -> None:
    connection = Connection()
    with _Drafting(Cache(FakeContext()), BEGIN, cast(ClientConnection, connection)):
        pass
    assert not connection.unable.is_set()

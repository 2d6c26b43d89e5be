"""DraftClient: real connections between a lead and drafts over fakes, also over a bad network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from duo.engine.cores import usable_cores
from duo.errors import UsageError
from duo.link.client import DraftClient, Refusal
from duo.link.connection import Listener
from duo.link.messages import Refused
from tests.fakes import FakeContext
from tests.proxy import Proxy
from tests.serving import free_port
from tests.unit.engine.helpers import Limited, until
from tests.unit.link.backs import FINGERPRINT, N_AHEAD, N, Stage, hello


@contextmanager
def drafting(
    port: int,
    make_context: Callable[[int], FakeContext] = lambda n_ctx: FakeContext(n_ctx=n_ctx, n_batch=64),
    **options: Any,
) -> Iterator[DraftClient]:
    """A client that runs on a thread of its own."""
    client = DraftClient(f"127.0.0.1:{port}", hello(), make_context, **options)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run)
        try:
            yield client
        finally:
            client.stop()
            running.result(60)


def write(stage: Stage) -> int:
    """Write a text, which is the target's own; the number of candidates accepted in it."""

    def pace() -> None:
        """A decode that is slow enough for the draft to get as far ahead as it may be, but for the prompt's."""
        end = time.monotonic() + (0.05 if stage.target.tokens else 0.0)
        while stage.writing.metrics.n_pending < N_AHEAD and time.monotonic() < end:
            time.sleep(0.001)

    stage.begin(pace)
    stage.finish()
    return stage.n_accepted


def test_a_draft_that_fails_can_draft_no_more_for_this_text(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with drafting(stage.port, lambda _: FakeContext(during=lambda: 1 / 0, n_batch=64)):
        stage.wait_for("joined", 1)
        stage.begin(lambda: until(lambda: "cannot draft for this text" in caplog.text))
        stage.finish()
        assert stage.n_accepted == 0
        until(lambda: "the draft failed: division by zero" in caplog.text)
        assert len(stage.drafts.connected) == 1
    assert "Traceback" in caplog.text


def test_a_client_waits_for_its_lead_and_connects_again(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with drafting(port):
        until(lambda: "trying again" in caplog.text)
        for n in (1, 2):
            with Listener(stage.app, "127.0.0.1", port):
                stage.wait_for("joined", n)
                assert write(stage) > N // 2
            until(lambda n=n: caplog.text.count("the lead disconnected") == n)  # type: ignore[misc]
    assert caplog.text.count("connected to the lead at") == 2


def test_what_a_lead_says_is_shown_without_escape_sequences(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duo.link.draft_connection.Refused", lambda _: Refused("\x1b[2J\x1b]0;mine\x07go away\n"))
    wrong = hello(token="wrong")
    with pytest.raises(Refusal) as raised:
        DraftClient(f"127.0.0.1:{stage.port}", wrong, lambda _: FakeContext()).run()
    assert str(raised.value) == "the lead refused this draft: ?[2J?]0;mine?go away?"


def test_the_pause_grows_until_the_lead_has_a_text(stage: Stage) -> None:
    stage.drafts.target = None  # it is loading: it accepts connections, and ends them
    with drafting(stage.port, pause_s=0.01) as client:
        until(lambda: client.pause_s >= 0.08)
        stage.drafts.target = FINGERPRINT
        stage.wait_for("joined", 1)
        assert client.pause_s >= 0.08, "to be connected is not enough"
        write(stage)
        assert client.pause_s == 0.01


@pytest.mark.parametrize("url", ["", "ws://", "ftp://a", "file:///a"])
def test_urls_that_name_no_lead(url: str) -> None:
    with pytest.raises(UsageError, match="ws://host:port"):
        DraftClient(url, hello(), lambda _: FakeContext())


def test_a_bad_network_changes_no_text(stage: Stage) -> None:
    chances = {"cut": 0.05, "twice": 0.1, "swap": 0.1, "spoil": 0.1}
    n_accepted = n_texts = 0
    with Proxy(stage.port, delay_s=0.001, seed=1, **chances) as proxy, drafting(proxy.port, pause_s=0.01):
        while not (n_accepted and chances.keys() <= proxy.counts.keys()):
            until(lambda: stage.drafts.connected)
            n_accepted += write(stage)
            n_texts += 1
            assert n_texts < 100, proxy.counts


@pytest.mark.parametrize("follows", [True, False])
def test_the_threads_of_a_draft_follow_the_free_cores_unless_the_user_has_chosen_them(
    stage: Stage, *, follows: bool
) -> None:
    context = FakeContext(n_ctx=2000, n_batch=64)
    cores = Limited(0, 0, 1, 1, 0) if follows else None
    with drafting(stage.port, lambda _: context, cores=cores):
        stage.wait_for("joined", 1)
        write(stage)
    n = usable_cores()
    assert context.teams[:6] == ([n, n, 1, 1, n, n] if follows else 6 * [0])

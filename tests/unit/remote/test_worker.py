"""DraftWorker: real connections between a lead and drafts over fakes, also over a bad network."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from duo.config import SamplingConfig
from duo.engine.cores import usable_cores
from duo.engine.prepared_outcomes import PreparingDrafter
from duo.engine.recorder import Recorder
from duo.errors import LinkError, UsageError
from duo.http.listener import Listener
from duo.remote.messages import Ahead, Begin, CandidateMessage, Message, Refused, Text, Welcome, encode
from duo.remote.process import run_all
from duo.remote.worker import DraftWorker, Refusal, RemoteTarget
from duo.speculation.sampling import Greedy
from duo.speculation.types import Candidate
from tests.fakes import CERTAIN, N_VOCAB, RANKS, FakeContext, ManualClock, Preparing, next_token
from tests.serving import free_port
from tests.unit.engine.helpers import PROMPT, Limited, until
from tests.unit.remote.proxy import Proxy
from tests.unit.remote.workers import FINGERPRINT, N_AHEAD, N, Stage, hello


@contextmanager
def drafting(
    port: int,
    make_context: Callable[[int], FakeContext] = lambda n_ctx: FakeContext(n_ctx=n_ctx, n_batch=64),
    **options: Any,
) -> Iterator[DraftWorker]:
    """A client that runs on a thread of its own."""
    client = DraftWorker(f"127.0.0.1:{port}", hello(), make_context, **options)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run)
        try:
            yield client
        finally:
            client.stop()
            running.result(60)


def write(stage: Stage, most_s: float = 5.0) -> int:
    """Write a text, which is the target's own; the number of candidates accepted in it."""

    def pace() -> None:
        """A decode that waits, but for the prompt's, until the draft is as far ahead as it may be; at most `most_s`."""
        end = time.monotonic() + (most_s if stage.target.tokens else 0.0)
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
    monkeypatch.setattr("duo.remote.connection.Refused", lambda _: Refused("\x1b[2J\x1b]0;mine\x07go away\n"))
    wrong = hello(token="wrong")
    with pytest.raises(Refusal) as raised:
        DraftWorker(f"127.0.0.1:{stage.port}", wrong, lambda _: FakeContext()).run()
    assert str(raised.value) == "the lead refused this draft: ?[2J?]0;mine?go away?"


def test_workers_of_a_process_end_with_the_first_and_take_turns_to_decode(stage: Stage) -> None:
    turn, n_inside, most = threading.Lock(), [0], list[int]()

    def during() -> None:
        n_inside[0] += 1
        time.sleep(0.001)
        most.append(n_inside[0])
        n_inside[0] -= 1

    def make(n_ctx: int) -> FakeContext:
        return FakeContext(n_ctx=n_ctx, n_batch=64, during=during)

    workers = [DraftWorker(f"127.0.0.1:{stage.port}", hello(), make, turn=turn) for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_all, workers)
        stage.wait_for("joined", 3)
        assert write(stage) > N // 2
        workers[0].stop()
        running.result(60)
    until(lambda: not stage.drafts.connected)
    assert set(most) == {1}
    refused = DraftWorker(f"127.0.0.1:{stage.port}", hello(token="wrong"), make)
    with pytest.raises(Refusal):
        run_all([refused, *(DraftWorker(f"127.0.0.1:{stage.port}", hello(), make) for _ in range(2))])
    until(lambda: not stage.drafts.connected)


def test_the_pause_grows_until_the_lead_has_a_text(stage: Stage) -> None:
    stage.drafts.target = None  # it is loading: it accepts connections, and ends them
    with drafting(stage.port, pause_s=0.01) as client:
        until(lambda: client.pause_s >= 0.08)
        stage.drafts.target = FINGERPRINT
        stage.wait_for("joined", 1)
        assert client.pause_s >= 0.08, "to be connected is not enough"
        write(stage)
        assert client.pause_s == 0.01


def test_neither_side_collects_small_messages_before_it_sends_them(stage: Stage) -> None:
    """As Nagle's algorithm does, until the other side has acknowledged the last one."""
    with drafting(stage.port) as worker:
        stage.wait_for("joined", 1)
        assert worker._socket is not None
        (connection,) = stage.connections
        sockets = worker._socket.socket, connection.transport.get_extra_info("socket")
        assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)


@pytest.mark.parametrize("url", ["", "ws://", "ftp://a", "file:///a"])
def test_urls_that_name_no_lead(url: str) -> None:
    with pytest.raises(UsageError, match="ws://host:port"):
        DraftWorker(url, hello(), lambda _: FakeContext())


def doubtful(n_ctx: int) -> FakeContext:
    """Of a draft that is wrong where the token is a multiple of three, and whose second choice is right there."""

    def guess(prefix: Sequence[int]) -> int:
        return next_token(prefix) + (not next_token(prefix) % 3)

    return FakeContext(guess, n_ctx=n_ctx, n_batch=64, n_branches=4, others=lambda prefix: [next_token(prefix)])


def test_a_bad_network_changes_no_text(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where outcomes are prepared."""
    new = partial(Preparing, 4, N_AHEAD, target=stage.drafts.costs, remote=True)
    monkeypatch.setattr(stage.drafts, "new_estimates", lambda model: new(name=model))
    chances = {"cut": 0.05, "twice": 0.1, "spoil": 0.1}
    n_accepted = n_prepared = n_texts = 0
    with Proxy(stage.port, **chances) as proxy, drafting(proxy.port, doubtful, pause_s=0.01):
        while not (n_accepted and n_prepared and chances.keys() <= proxy.counts.keys()):
            until(lambda: stage.drafts.connected)
            n_accepted += write(stage, 0.05)
            n_prepared += stage.writing.metrics.hits.total()
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


# What a remote draft knows of the lead's text, and how far it may draft

SERIAL, EPOCH, AHEAD = 5, 2, 3
LOOKAHEAD = Ahead(AHEAD, 0.0, CERTAIN, 0, ())


class SavingContext(FakeContext):
    """One whose cache can be copied."""

    can_save, is_windowed, n_state_bytes = True, False, 100

    def save(self) -> Any:
        return SimpleNamespace(tokens=list(self.tokens), nbytes=100)

    def load(self, state: Any) -> bool:
        self.tokens = list(state.tokens)
        return True


def test_conversations_in_turns_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    context, known, texts = SavingContext(n_batch=64), list[int](), [[3 + i] * 50 for i in range(3)]
    worker = DraftWorker("lead:1", hello(), lambda _: context)

    class Lead:
        """A connection on which a lead begins texts, and lets the draft read each."""

        socket = SimpleNamespace(shutdown=lambda _: None)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            worker.stop()

        def send(self, data: bytes) -> None:
            pass

        def recv(self, timeout: float) -> bytes:
            return encode(Welcome(1000))

        def __iter__(self) -> Iterator[bytes]:
            for i in (0, 1, 0, 2, 1, 0):
                text = texts[i] = [*texts[i], 9]
                yield encode(Begin(SERIAL, N_VOCAB, SamplingConfig(), [], EPOCH, text, False, LOOKAHEAD))
                known.append(context.n_past)
                yield encode(Text(SERIAL, EPOCH, len(text), [], True))
                until(lambda: context.n_past >= len(text))  # noqa: B023 - it ends within the loop

    monkeypatch.setattr("duo.remote.worker.connect", lambda *_, **__: Lead())
    worker.run()
    assert known == [0, 0, 51, 0, 51, 52]


def asked(*, may_draft: bool = True) -> tuple[RemoteTarget, list[Any], Mock]:
    """What stands for the lead of one text, what it sends, and what cancels the draft's decode."""
    sent, cancel = list[Any](), Mock()
    begin = Begin(SERIAL, N_VOCAB, SamplingConfig(), [], EPOCH, list(PROMPT), may_draft, LOOKAHEAD)
    return RemoteTarget(begin, sent.append, cancel), sent, cancel


def told(position: int, tokens: list[int], epoch: int = EPOCH, *, serial: int = SERIAL, may_draft: bool = True) -> Text:
    return Text(serial, epoch, position, tokens, may_draft)


def test_an_order_to_continue_and_the_end_wake_the_draft_and_tokens_alone_do_not() -> None:
    target, woken = asked(may_draft=False)[0], list[bool]()
    thread = threading.Thread(target=lambda: woken.extend(target.wait_for_room() for _ in range(2)), daemon=True)
    thread.start()
    target.update(told(3, [7], may_draft=False))
    target.update(told(4, [7], EPOCH + 1, may_draft=False))
    assert woken == []
    target.update(told(5, []))
    until(lambda: woken)
    target.close()
    thread.join(60)
    assert woken[0]
    assert not thread.is_alive()


def test_nothing_is_sent_under_the_lock() -> None:
    """A connection that blocks must not keep the lead's messages from being handled."""

    def send(_: Message) -> None:
        update = threading.Thread(target=lambda: target.update(told(3, [7])), daemon=True)
        update.start()
        update.join(timeout=30)
        assert not update.is_alive()

    begin = Begin(SERIAL, N_VOCAB, SamplingConfig(), [], EPOCH, [*PROMPT], True, LOOKAHEAD)
    target = RemoteTarget(begin, send, Mock())
    target.publish(0, 3, Candidate(7, 1.0), 1, 0.1)
    assert target.begin().tokens == [*PROMPT, 7]


def test_a_draft_runs_ahead_until_it_is_contradicted() -> None:
    target, sent, cancel = asked()

    def draft(position: int, token: int) -> tuple[list[int], bool]:
        """Draft one token: what the draft is told before, and whether its token was of use."""
        update = target.begin()
        return update.tokens, target.publish(update.epoch, position, Candidate(token, 1.5), 2, 0.25)

    assert draft(3, 1) == (PROMPT, True)
    target.update(told(3, [1]))
    assert draft(4, 5) == ([1], True)
    assert sent[-1] == CandidateMessage(SERIAL, EPOCH, 4, 4, 5, 1.5, 2, 0.25)
    target.update(told(4, [5, 2]))
    assert draft(5, 7) == ([5, 2], False), "it comes late and is wrong, which the lead learns from"
    for position in range(6, 6 + AHEAD):
        assert target._allows()
        draft(position, 0)
    assert (target._allows(), len(sent)) == (False, 3 + AHEAD)
    old = target.begin()
    target.update(told(6, [], 9, serial=SERIAL - 1))
    assert cancel.call_count == 0
    target.update(told(6, [8], EPOCH + 1))
    assert (target._allows(), cancel.call_count) == (True, 1)
    assert not target.publish(old.epoch, 9, Candidate(0, 1.5), 1, 0.25), "of the old epoch"
    assert len(sent) == 3 + AHEAD
    assert draft(7, 0) == ([8], True)
    assert sent[-1].epoch == EPOCH + 1
    target.update(told(7, [], EPOCH + 2))
    assert not target.publish(target.begin().epoch, 8, Candidate(0, 1.5), 1, 0.25), "the lead lacks a candidate"
    assert draft(7, 0) == ([], True)
    with pytest.raises(LinkError, match="after 7 tokens"):
        target.update(told(8, [9], EPOCH + 2))
    target.update(told(7, [], EPOCH + 2, may_draft=False))
    assert not target._allows()


def test_how_late_a_draft_begins_anew_is_said_with_its_first_candidate() -> None:
    clock, sent = ManualClock(), list[Any]()
    begin = Begin(SERIAL, N_VOCAB, SamplingConfig(), [], EPOCH, list(PROMPT), True, LOOKAHEAD)
    target = RemoteTarget(begin, sent.append, Mock(), Recorder(clock))

    def late_s(passes_s: float, position: int) -> float:
        """What is said of the decode that ends then, and took 0.25 s."""
        epoch = target.begin().epoch
        clock.time += passes_s
        assert target.publish(epoch, position, Candidate(1, 1.5), 1, 0.25)
        return float(sent[-1].late_s)

    assert late_s(1.0, 3) == 0.0, "it has waited for nothing"
    target.update(told(3, [9], EPOCH + 1))
    assert late_s(0.35, 4) == pytest.approx(0.1), "a decode had to end"
    assert late_s(0.25, 5) == 0.0
    target.update(told(4, [8], EPOCH + 2, may_draft=False))
    clock.time += 5000.0
    target.update(told(5, [], EPOCH + 2))
    assert late_s(0.25, 5) == 0.0, "it had to pause"


OTHERS = (7, 8)


def test_what_a_draft_prepares_is_sent_with_its_chain_and_goes_on_when_it_comes_true() -> None:
    context = FakeContext(lambda _: 5, n_branches=2, others=lambda _: OTHERS)
    sent, preparing = list[Any](), Ahead(6, 0.0, tuple(0.5 for _ in CERTAIN), 2, RANKS)
    begin = Begin(SERIAL, N_VOCAB, SamplingConfig(), [], EPOCH, list(PROMPT), True, preparing)
    target = RemoteTarget(begin, sent.append, context.cancel)
    drafter = PreparingDrafter(context, target, Greedy(n_alternatives=2), N_VOCAB, Recorder())
    drafter.step()
    assert (sent[-1].token, sent[-1].alternatives, sent[-1].prepared) == (5, OTHERS, ())
    target.update(Text(SERIAL, EPOCH, 3, [], True, n_verified=4))
    for n in range(2):
        drafter.step()
        made = [(each.wrong, each.right, each.position, each.token) for each in sent[-1].prepared]
        assert made == [(3, right, 4 + n, 5) for right in OTHERS]
        assert (sent[-1].n_sequences, sent[-1].token, sent[-1].position) == (3, 5, 4 + n)
    target.update(Text(SERIAL, EPOCH + 1, 3, [7], True))
    n = len(context.batches)
    drafter.step()
    assert (context.tokens, context.batches[n:], context.branches) == ([*PROMPT, 7, 5, 5], [1], {})
    assert (sent[-1].epoch, sent[-1].n_known, sent[-1].position, sent[-1].prepared) == (EPOCH + 1, 4, 6, ())

"""The draft's own thread: it ends when it must, whatever it is doing, and the draft can go on elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from duo.engine.draft_thread import DraftThread
from duo.engine.queue import CandidateQueue
from tests.fakes import N_VOCAB, FakeContext
from tests.unit.engine.helpers import PROMPT, as_far_as, far_ahead, make_drafter, make_queue


@contextmanager
def drafting(queue: CandidateQueue, draft: FakeContext) -> Iterator[DraftThread]:
    with DraftThread(make_drafter(draft, queue), queue, draft) as thread:
        yield thread
    assert not thread._thread.is_alive()
    assert not draft.aborted, "it can be used again"
    assert queue.wait_for_room() is False


def test_the_draft_thread_is_dead_after_with_even_if_it_never_got_room() -> None:
    with drafting(far_ahead(), FakeContext()) as thread:
        assert thread._thread.is_alive()
        assert not thread._thread.daemon
    assert thread.error is None


def test_the_draft_thread_carries_its_exception() -> None:
    error = RuntimeError("gone")

    def fail(_: object) -> int:
        raise error

    queue = make_queue()
    with drafting(queue, FakeContext(fail)) as thread:
        thread._thread.join(timeout=30)
        assert thread.error is error
        assert thread.has_ended
        assert queue.wait(3600) is False, "the target waits for nothing any more"


def test_a_draft_that_cannot_go_on_ends_its_thread() -> None:
    queue = make_queue()
    queue.tell(0, [N_VOCAB - 1], as_far_as(6), ())
    with drafting(queue, FakeContext(n_vocab=N_VOCAB - 1)) as thread:
        thread._thread.join(timeout=30)
        assert thread.error is None
        assert thread.has_ended
        assert queue.wait(3600) is False


def test_a_draft_in_the_middle_of_a_decode_is_aborted_and_joined() -> None:
    draft = FakeContext()
    inside = threading.Event()

    def stay() -> None:
        inside.set()
        while not draft.aborted:
            time.sleep(0.001)

    draft.during = stay
    queue = make_queue()
    with drafting(queue, draft) as thread:
        inside.wait(30)
    assert thread.error is None
    assert not thread.has_ended, "it was ended"
    draft.during = lambda: None
    assert make_drafter(draft, make_queue()).step()
    assert draft.tokens == PROMPT

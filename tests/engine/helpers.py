"""A generation over fakes, threaded or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from duo.config import StopConfig, ThreadConfig
from duo.engine.drafter import Drafter
from duo.engine.drafting import Drafting
from duo.engine.generation import Generation
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.text import Ending, TextStream
from duo.spec.policy import Policy
from duo.spec.sampling import Greedy
from duo.spec.session import Session
from duo.spec.types import Guess, Step
from duo.spec.verify import Matching
from tests.fakes import N_VOCAB, THREADS, Eager, FakeContext

PROMPT = [3, 1, 4]


def make_ending(n_predict: int = -1, stops: Sequence[str] = (), end_token: int = -1) -> Ending:
    stream = TextStream(lambda token: bytes([97 + token]), stops)
    return Ending(StopConfig(n_predict, tuple(stops)), stream, lambda token: token == end_token)


def make_queue(policy: Policy | None = None, *, has_draft: bool = True) -> CandidateQueue:
    return CandidateQueue(Session(PROMPT, N_VOCAB), policy or Eager(4, 6), has_draft=has_draft)


def far_ahead() -> CandidateQueue:
    """A queue with all the candidates that the draft may make."""
    queue = make_queue(Eager(4, 1))
    queue.begin_beside()
    queue.publish(0, len(PROMPT), Guess(7, 9.0), 1, 0.001)
    return queue


def make_drafter(draft: FakeContext, queue: CandidateQueue) -> Drafter:
    return Drafter(draft, queue, Greedy(), N_VOCAB, Metrics())


class Unthreaded(Drafting):
    """Has no thread beside the target's: what the draft does there is the test's to say, with `drafter`."""

    def __init__(self, target: FakeContext, draft: FakeContext, queue: CandidateQueue) -> None:
        self.drafter = make_drafter(draft, queue)
        super().__init__(target, draft, self.drafter, queue, THREADS)

    def _begin_beside(self) -> None:
        self._queue.begin_beside()

    def _end_beside(self) -> None:
        self._queue.end_beside()


def make_generation(
    target: FakeContext,
    draft: FakeContext | None,
    ending: Ending,
    policy: Policy | None = None,
    threads: ThreadConfig = THREADS,
) -> Generation:
    greedy, policy = Greedy(), policy or Eager(4, 6)
    return Generation(target, draft, PROMPT, Matching(greedy), greedy, ending, policy, threads, Metrics())


def run(generation: Generation, on_step: Callable[[Step], None] = lambda _: None) -> list[int]:
    """Run to the end on this thread; the tokens written."""
    tokens: list[int] = []

    def put(step: Step) -> None:
        tokens.extend(step.tokens)
        on_step(step)

    generation.run(put, threading.Event())
    return tokens


def draft_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "duo-draft"]

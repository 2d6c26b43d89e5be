"""A generation over fakes, threaded or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from duo.config import StopConfig
from duo.engine.drafter import Drafter
from duo.engine.generation import Generation
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.text import Ending, TextStream
from duo.spec.sampling import Greedy
from duo.spec.session import Session
from duo.spec.types import Step
from tests.fakes import N_VOCAB, Eager, FakeContext

PROMPT = [3, 1, 4]


def make_ending(n_predict: int = -1, stops: Sequence[str] = (), end_token: int = -1) -> Ending:
    stream = TextStream(lambda token: bytes([97 + token]), stops)
    return Ending(StopConfig(n_predict, tuple(stops)), stream, lambda token: token == end_token)


def make_queue(n_max: int = 4, n_ahead: int = 6, *, drafting: bool = True) -> CandidateQueue:
    return CandidateQueue(Session(PROMPT, N_VOCAB), Eager(n_max, n_ahead), drafting=drafting)


def make_drafter(draft: FakeContext, queue: CandidateQueue) -> Drafter:
    return Drafter(draft, queue, Greedy(), N_VOCAB, Metrics())


def make_generation(
    target: FakeContext, draft: FakeContext | None, ending: Ending, n_max: int = 4, n_ahead: int = 6
) -> Generation:
    return Generation(target, draft, PROMPT, Greedy(), ending, Eager(n_max, n_ahead), Metrics())


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

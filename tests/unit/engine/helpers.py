"""Generations over fake contexts, with threads or without."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pytest

from duo.config import SamplingConfig, StopConfig, ThreadConfig
from duo.engine.async_draft import CandidateQueue
from duo.engine.cores import CoresInUse
from duo.engine.drafter import Drafter, DraftThread, DraftUpdate
from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import Result, RunningText
from duo.engine.recorder import Clock, Recorder
from duo.engine.request import Ending
from duo.remote.drafts import RemoteDrafts
from duo.speculation.acceptance import Lookahead
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.sampling import Greedy
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Candidate, Step
from duo.speculation.verify import Matching
from tests.fakes import CERTAIN, N_VOCAB, RANKS, THREADS, Eager, EagerController, FakeContext

PROMPT = [3, 1, 4]
T = TypeVar("T")


class WatchedCondition(threading.Condition):
    """A queue's condition, which says which of them are waited for."""

    waiting: ClassVar[set[threading.Condition]] = set()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting.add(self)  # with the lock held: no act on the queue comes before the wait
        try:
            return super().wait(timeout)
        finally:
            self.waiting.discard(self)


class WatchedClock(Clock):
    def condition(self) -> threading.Condition:
        return WatchedCondition(threading.Lock())


def make_ending(n_predict: int = -1, stops: Sequence[str] = (), end_token: int = -1) -> Ending:
    return Ending(
        StopConfig(n_predict, tuple(stops)), lambda token: bytes([97 + token]), lambda token: token == end_token
    )


def make_text(
    ending: Ending | None = None, prompt: Sequence[int] = PROMPT, recorder: Recorder | None = None
) -> RunningText:
    recorder, ending = recorder or Recorder(), ending or make_ending()
    recorder.ending, greedy = ending, Greedy(n_alternatives=len(RANKS))
    return RunningText(
        list(prompt), ending, recorder, Matching(Greedy()), greedy, SamplingConfig(), N_VOCAB, mode="greedy", n_room=100
    )


def as_far_as(n_ahead: int) -> Lookahead:
    return Lookahead(n_ahead, 0.0, CERTAIN)


def make_queue() -> CandidateQueue:
    """An open queue for PROMPT."""
    queue = CandidateQueue(TokenSequence(PROMPT, N_VOCAB), Recorder())
    queue.open()
    queue.allow(as_far_as(6))
    return queue


class Side:
    """A target's side that says what it is told to say, then nothing new, and notes what is offered."""

    def __init__(self, *said: DraftUpdate) -> None:
        self.said, self.epoch = list(said), 0
        self.offers: list[tuple[int, Candidate, int, float]] = []

    def begin(self) -> DraftUpdate:
        update = self.said.pop(0) if self.said else DraftUpdate(self.epoch, [])
        self.epoch = update.epoch
        return update

    def publish(self, epoch: int, position: int, candidate: Candidate, n_tokens: int, seconds: float) -> bool:
        assert epoch == self.epoch
        self.offers.append((position, candidate, n_tokens, seconds))
        return True


class NoThread(DraftThread):
    """Replaces the draft's thread: the test moves the drafter."""

    def start(self) -> None: ...

    def stop(self) -> None:
        self.queue.close()


class Unthreaded(LocalDraft):
    """Has no thread of its own: a test moves its `drafter`."""

    text: RunningText  # those of begun()
    controller: Controller

    @property
    def drafter(self) -> Drafter:
        assert self._drafter is not None
        return self._drafter

    @property
    def queue(self) -> CandidateQueue:
        return self._queue

    @property
    def pending(self) -> list[int]:
        return [candidate.token for candidate in self._sequence.pending]

    def _start_thread(self) -> None:
        if self._thread is None:
            self._queue.open()
            self._concurrent = self.threads.concurrent
            self._thread = NoThread(self.drafter, self._queue)

    def wrote(self, *tokens: int, **more: Any) -> None:
        """The target has written these."""
        self.commit([Result(tokens, **more)])


def begun(
    draft: FakeContext,
    estimates: DraftEstimates | None = None,
    clock: Clock | None = None,
    kind: type[EagerController] = EagerController,
) -> Unthreaded:
    """A draft that takes part in a text after PROMPT."""
    estimates = estimates or Eager(4, 6)
    made = Unthreaded(Cache(draft), estimates)
    made.threads, made.text = THREADS, make_text(recorder=Recorder(clock or WatchedClock()))
    made.controller = kind(estimates.target)
    made.controller.begin([estimates], len(PROMPT), sampling="greedy")
    made.begin(made.text)
    return made


class Limited(CoresInUse):
    """Follows a script: the limit in each of the target's decodes."""

    def __init__(self, *limits: int) -> None:
        super().__init__()
        self._now, *rest = limits
        self._script = iter(rest)

    @property
    def limit(self) -> int:
        return self._now

    def begin(self) -> None: ...

    def decoded(self) -> bool:
        before, self._now = self._now, next(self._script, self._now)
        return self._now != before


class Writing(Generation):
    """A generation, its metrics and its local draft, of which a context may be given."""

    def __init__(
        self,
        target: FakeContext,
        draft: FakeContext | LocalDraft | None,
        ending: Ending,
        estimates: DraftEstimates | None = None,
        threads: ThreadConfig = THREADS,
        cores: CoresInUse | None = None,
        prompt: Sequence[int] = PROMPT,
        on_prompt: Callable[[int], None] = lambda _: None,
        remote: RemoteDrafts | None = None,
        n_logprobs: int | None = None,
    ) -> None:
        if isinstance(draft, FakeContext):
            draft = LocalDraft(Cache(draft), estimates or Eager(4, 6))
        self.metrics, self.local, self._n_left = Recorder(), draft, math.inf
        proposers, text = Proposers(), make_text(ending, prompt, self.metrics)
        if draft is not None or remote is not None:
            controller = EagerController(draft.estimates.target if draft is not None else None)
            proposers = Proposers(controller, [draft] if draft is not None else [], remote)
            if remote is not None:
                remote.costs = controller.target
        super().__init__(target, text, threads, proposers, on_prompt, n_logprobs, cores or Limited(0))

    def steps(self) -> Iterator[Step]:
        """What run() does, one step at a time."""
        found = list[Step]()
        self._put, self._stop, self._pauses = found.append, threading.Event(), lambda _: False
        self.begin()
        while self._ending.reason is None:
            self._n_left = 1
            self.write()
            yield from found
            found.clear()
        for proposer in self.proposers:
            proposer.end()

    def _running(self) -> list[RunningText]:
        if self._is_new:
            if not self._n_left:
                return []
            self._n_left -= 1
        return super()._running()


def run(generation: Generation, on_step: Callable[[Step], None] = lambda _: None) -> list[int]:
    """Run to the end on this thread; the tokens written."""
    tokens: list[int] = []

    def put(step: Step) -> None:
        tokens.extend(step.tokens)
        on_step(step)

    generation.run(put, threading.Event())
    return tokens


def take(draft: Unthreaded) -> tuple[int, ...]:
    """What a generation does at each step: the candidates to verify, after the waits that the controller wants."""
    text, plan = [draft.text], draft.controller.plan
    while (found := plan(text, [draft.propose(text)])).wait_s is not None:
        draft.wait(found.wait_s)
    draft.verifies(len(found.candidates))
    return tuple(candidate.token for candidate in found.candidates)


def draft_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "duo-draft"]


def until(condition: Callable[[], object]) -> None:
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.001)
    pytest.fail("the condition was never met")


def until_one_waits() -> None:
    """Another thread waits on a queue."""
    until(lambda: WatchedCondition.waiting)


def wakes(act: Callable[[], object], wait: Callable[[], T]) -> T:
    """What `wait` returns on another thread after `act`, which comes while it waits; a lost wake-up fails."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(wait()), daemon=True)
    thread.start()
    until_one_waits()
    act()
    thread.join(timeout=60)
    assert not thread.is_alive(), "the wake-up was lost"
    return results[0]

"""Scheduler: which text is written when, on a thread of its own."""

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from duo.engine.cores import pin
from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import SavedCache
from duo.engine.model_pair import ModelPair
from duo.engine.proposers import RunningText
from duo.engine.request import Drafting, Ending, Request, choosing
from duo.engine.statistics import INTERRUPTED
from duo.errors import BusyError, DecodeError, DuoError, ModelError, PromptError, UsageError
from duo.llama import lifeline
from duo.speculation.constants import DEFAULT
from duo.speculation.modes import Schedule
from duo.speculation.types import Step

log = logging.getLogger("duo.engine")

T = TypeVar("T")
_LINGER_S = 0.05  # wait for the next job: consecutive requests share the thread, and the memory that it has freed


@dataclass(slots=True, eq=False)
class Turns(Generic[T]):
    """A queue in which clients take turns.

    Each job gets the time at which it would end if all clients were served at once, at the same rate, and the one that
    would end first is taken (weighted fair queueing). So whoever asks for little waits little, however much others have
    asked for before, and a client that asks for much waits for its own jobs only. Jobs of one client keep their order.
    """

    _now: float = 0.0  # what each client that waits would have got so far
    _ends: dict[Hashable, float] = field(default_factory=dict)  # of the last job of each client; past ones are left out
    _jobs: list[tuple[float, Hashable, float, T]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: T, client: Hashable = None, cost: float = 0.0) -> None:
        """Queue a job of a client; `cost`: how long it takes, in any unit."""
        self._ends[client] = end = max(self._now, self._ends.get(client, 0.0)) + cost
        self._jobs.append((end, client, cost, job))

    def take(self) -> T:
        """Remove the job whose turn it is. There must be one."""
        found = min(self._jobs, key=lambda one: one[0])  # of several, the first
        self._jobs.remove(found)
        n_clients = sum(end > self._now for end in self._ends.values())
        self._now += found[2] / max(1, n_clients)
        self._ends = {client: end for client, end in self._ends.items() if end > self._now}
        return found[3]

    def remove(self, job: T) -> bool:
        """Remove a job. False if it is not there."""
        for i, (_, client, cost, other) in enumerate(self._jobs):
            if other is job:
                del self._jobs[i]
                if client in self._ends:
                    self._ends[client] -= cost
                return True
        return False


@dataclass(slots=True)
class _Paused:
    """A text that others have interrupted, what the contexts held of it, and its slot."""

    generation: Generation
    caches: list[SavedCache]
    slot: int


class Scheduler:
    """Writes the texts of requests with the contexts of a model pair, one at a time; clients take turns.

    It owns the requests from submit() to their end, and the thread that writes. A thread that has decoded owns a team
    of OpenMP threads, which slows down others while it idles. So the thread ends soon after there is nothing to do. Any
    thread may call all methods but commit().
    """

    def __init__(self, slot: ModelPair) -> None:
        self._slot = slot
        self.fault: str | None = None  # the exception of the last request, if it was not the client's fault
        self.last: Request | None = None  # the last one that was submitted
        self._paused: dict[Request, _Paused] = {}
        self._numbers = count(1)
        self._changed = threading.Condition()  # its lock protects what follows
        self._requests: dict[Request, None] = {}  # those that have not ended
        self._running: list[Request] = []
        self._waiting = Turns[Request | Callable[[], None]]()
        self._thread: threading.Thread | None = None  # the last one
        self._has_thread = False
        self.is_closing = False

    # Waiting

    @property
    def requests(self) -> list[Request]:
        """Those that have not ended, in their order."""
        return list(self._requests)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises PromptError for an empty prompt, BusyError once close() was called."""
        if not request.prompt:
            raise PromptError("the prompt has no tokens")
        with self._changed:
            if self.is_closing:
                raise BusyError("the engine is closing")
            request.number = next(self._numbers)
            self._requests[request], self.last = None, request
            self.add(request)

    def add(self, job: Request | Callable[[], None]) -> None:
        """Queue the next turn of a request, or work that must not raise. Ctrl-C while a thread starts undoes it."""
        with self._changed:
            if isinstance(job, Request):
                self._waiting.add(job, job.client, job.cost(self._slot.config.turn_tokens or self._slot.n_ctx))
            else:
                self._waiting.add(job)
            self._changed.notify_all()
            if self._has_thread:
                return
            thread, before = threading.Thread(target=self._run, name="duo-target"), self._thread
            self._has_thread, self._thread = True, thread
            try:
                thread.start()
            except BaseException:
                self._has_thread, self._thread = False, before  # if it has started after all, it ends at once
                self._waiting.remove(job)
                if isinstance(job, Request):
                    self._requests.pop(job, None)
                raise

    def cancel(self, request: Request) -> None:
        """End a request: at once if it waits, otherwise after the current decode, or in its prefill or warm-up."""
        request.cancelled.set()
        with self._changed:
            if request in self._running:
                self._slot.abort()
            has_waited = self._waiting.remove(request)
        if has_waited:
            self._end(request)

    def interrupt(self) -> None:
        """End the text that is being written, or a warm-up without one."""
        with self._changed:
            for request in self._running:
                request.cancelled.set()
            self._slot.abort()

    def fail(self, error: BaseException, requests: Collection[Request] | None = None) -> None:
        """End `requests` (default: all) with `error`."""
        for request in self.requests if requests is None else requests:
            self._end(request, error)
            self.cancel(request)

    def close(self) -> bool:
        """Cancel all requests and wait for the thread, unless llama.cpp blocks it forever. False: was called before."""
        with self._changed:
            if self.is_closing:
                return False
            self.is_closing = True
            self._changed.notify_all()
        for request in self.requests:
            self.cancel(request)
        self.interrupt()
        while not lifeline.is_lost():
            with self._changed:
                thread, has_thread = self._thread, self._has_thread
            if thread is not None:
                thread.join()
            if not has_thread:
                break
        return True

    # Running, on the thread

    def running(self) -> list[Request]:
        """The requests whose texts are being written now."""
        return list(self._running)

    def commit(self, steps: Sequence[tuple[Request, Step]]) -> None:
        """These steps were made: hand them over. Whoever has had his turn pauses if others wait, and runs no more."""
        for request, step in steps:
            request.put(step)
            request.n_turn += len(step.tokens)
            if self._has_had_its_turn(request) and request in self._running:
                self._running.remove(request)

    def _has_had_its_turn(self, request: Request) -> bool:
        """Whether a text has to pause. It may if it can be continued later, and if there is room for what it has."""
        slot, most = self._slot, self._slot.config.turn_tokens
        if not most or request.n_turn < most or not self._waiting or request.metrics.stop != INTERRUPTED:
            return False
        if not slot.is_largest or slot.caches[0].savable is None:
            return False
        n_most = slot.config.cache_ram * 2**20  # as much memory as conversations that are kept
        paused = sum(cache.n_bytes for text in list(self._paused.values()) for cache in text.caches)
        return n_most < 0 or paused + sum(cache.n_state_bytes for cache in slot.caches) <= n_most

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, Request):
                self._take_turn(job)
            else:
                job()

    def _next(self) -> Request | Callable[[], None] | None:
        """Whose turn it is; None: the thread ends, because there is nothing to do, or another one."""
        with self._changed:
            if self._thread is not threading.current_thread():
                return None
            self._changed.wait_for(lambda: self._waiting or self.is_closing, _LINGER_S)
            self._has_thread = len(self._waiting) > 0
            return self._waiting.take() if self._has_thread else None

    def _take_turn(self, request: Request) -> None:
        error: BaseException | None = None
        try:
            with lifeline.notifying(self.fail):
                has_ended = request.cancelled.is_set() or self._write(request)
            if not has_ended and request in self._requests:
                self.add(request)  # its next turn
                return
            self.fault = None
        except DuoError as raised:
            error = raised
            self.fault = self.fault if isinstance(error, BusyError | PromptError | UsageError) else str(error)
        except BaseException as raised:
            log.exception("a generation failed")
            error, self.fault = raised, repr(raised)
        self._end(request, error)  # which is raised in the thread that iterates

    def _end(self, request: Request, error: BaseException | None = None) -> None:
        """Tell who asked that the text has ended, once."""
        self._paused.pop(request, None)
        with self._changed:
            if request not in self._requests:
                return
            del self._requests[request]
        try:
            request.end(error)
        except Exception:  # the next request may succeed
            log.exception("a callback at the end of a generation failed")

    def _write(self, request: Request) -> bool:
        """Write until the text ends or is cancelled: True. False: it pauses. Raises DuoError."""
        slot = self._slot
        request.began = request.began or request.metrics.clock.now()
        with self._changed:
            self._running.append(request)
        try:
            pin(slot.threads.cores)
            is_loading = not slot.n_ctx  # the first contexts are part of loading
            seconds = slot.reserve(len(request.prompt), request.config.stop.n_predict, request.cancelled)
            request.metrics.started += seconds if is_loading else 0.0
            with slot.recorder.watching():
                return self._generate(request)
        finally:
            with self._changed:
                self._running.clear()

    def _generate(self, request: Request) -> bool:
        slot, paused = self._slot, self._paused.pop(request, None)
        slot.saved.reserved = {one.slot for one in list(self._paused.values())}
        slot.cores.begin()
        if paused is None:
            generation = self._begin(request)
        else:
            generation = paused.generation
            slot.saved.keep(slot.caches)
            for cache, saved in zip(slot.caches, paused.caches, strict=True):
                cache.load(saved)
            slot.saved.take(paused.slot)
        target, text = slot.caches[0], generation.text
        has_ended, request.n_turn = True, 0
        try:
            has_ended = self._compute(generation, request)
            return has_ended
        finally:
            target.end(text.tokens, text.n_prompt)
            if not has_ended:
                request.n_pauses += 1
                self._paused[request] = _Paused(generation, [cache.save() for cache in slot.caches], slot.saved.here)
                target.is_copied = True

    def _compute(self, generation: Generation, request: Request) -> bool:
        """Generation.run(). If llama.cpp fails, all is read again, once; then the next text gets new contexts."""
        slot, has_ended = self._slot, True
        failure: DuoError | None = None

        def put(step: Step) -> None:
            self.commit([(request, step)])

        for is_first in (True, False):
            try:
                with slot.computing(generation.interrupt):
                    has_ended = generation.run(put, request.cancelled, lambda _: request not in self._running)
                break
            except (DecodeError, ModelError) as error:
                slot.reset()
                failure = error
                slot.is_usable = is_first
        if not slot.is_usable:
            if not isinstance(failure, ModelError):
                failure = ModelError(f"{slot.target.path.name}: no text can be written: {failure}")
            self.fail(failure, list(self._paused))  # they cannot go on in new contexts
            raise failure
        if failure is not None:
            log.warning("%s: all was read again, with empty caches", failure)
        return has_ended

    def _begin(self, request: Request) -> Generation:
        config, slot = request.config, self._slot
        target, cache, slot.memories.owner = slot.target, slot.caches[0], request.owner
        proposers = request.proposers or self._proposers(request.drafting, is_rejection=config.is_rejection)
        banned = target.end_tokens if config.stop.ignore_eos else ()
        verifier, sampler = choosing(target, config, banned, len(DEFAULT.ranks) if slot.n_branches else 0)
        slot.saved.begin(slot.caches, request.prompt, request.slot)
        request.slot = slot.saved.here
        if not request.reuses:
            cache.clear()
        request.n_cached = cache.begin(request.prompt, None if request.scored is None else config.n_logprobs or 0)
        if request.scored is not None:
            request.scored = cache.scored
        ending = request.metrics.ending = Ending(config.stop, target.piece, target.is_end)
        text = RunningText(
            list(request.prompt), ending, request.metrics, verifier, sampler, config.sampling, target.n_vocab, banned,
            config.mode, judges_all=not config.is_rejection,
        )  # fmt: skip
        logprobs, scored = config.n_logprobs, request.scored
        return Generation(cache.context, text, slot.threads, proposers, request.on_prompt, logprobs, slot.cores, scored)

    def _proposers(self, asked: Drafting, *, is_rejection: bool) -> Proposers:
        slot = self._slot
        drafting, lookup = asked.applied(slot.drafting), asked.lookup is not False
        if drafting.schedule == Schedule.OFF.value:  # there is nothing to learn
            return slot.proposers(drafts=False, remote=False, lookup=bool(asked.lookup))
        if not drafting.n_max:
            return Proposers()
        if slot.draft is not None and drafting != slot.drafting:
            return slot.limited(drafting, lookup=lookup, remote=not is_rejection)
        return slot.proposers(remote=not is_rejection, lookup=lookup)

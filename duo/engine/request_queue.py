"""RequestQueue: the requests of an engine, from submit() to their end, and the thread that writes their texts."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from duo.engine.generation import Generation
from duo.engine.kv_store import LEAST, Cache, SavedCache
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request
from duo.engine.statistics import INTERRUPTED
from duo.engine.turns import Turns
from duo.errors import BusyError, PromptError
from duo.llama import lifeline
from duo.speculation.types import common_prefix

log = logging.getLogger("duo.engine")


_EXPECTED = 256  # tokens that a text is expected to add, at most: if there is no room for more, one pauses


def may_share(request: Request) -> bool:
    """Whether a text may be written together with others: others are read in batches of their own."""
    return request.scored is None and request.proposers is None and request.config.stop.n_predict != 0


def n_expected(request: Request) -> int:
    """Tokens of a text for which there must be room before it is written together with others."""
    n_left = request.config.stop.n_predict - request.n_written
    return len(request.prompt) + request.n_written + (min(_EXPECTED, n_left) if n_left >= 0 else _EXPECTED)


@dataclass(slots=True)
class Paused:
    """A text that others have interrupted, what the contexts held of it, and its slot."""

    generation: Generation
    caches: list[SavedCache]
    slot: int


class RequestQueue:
    """The requests that wait, run or pause. Any thread may call all methods.

    A thread that has decoded owns a team of OpenMP threads, which slows down others while it idles. So the thread ends
    soon after there is nothing to do.
    """

    def __init__(self, slot: ModelPair) -> None:
        self._slot = slot
        self.fault: str | None = None  # the exception of the last request, if it was not the client's fault
        self.last: Request | None = None  # the last one that was submitted
        self._paused: dict[Request, Paused] = {}
        self._numbers = count(1)
        self._changed = threading.Condition()  # its lock protects what follows
        self._requests: dict[Request, None] = {}  # those that have not ended
        self._running: list[Request] = []
        self._waiting = Turns[Request | Callable[[], None]]()
        self._thread: threading.Thread | None = None  # the last one
        self._has_thread = False
        self.is_closing = False

    @property
    def requests(self) -> list[Request]:
        """Those that have not ended, in their order."""
        return list(self._requests)

    def submit(self, *requests: Request) -> None:
        """Queue requests, all at once. Raises PromptError for an empty prompt, BusyError once close() was called."""
        if not all(request.prompt for request in requests):
            raise PromptError("the prompt has no tokens")
        with self._changed:
            if self.is_closing:
                raise BusyError("the engine is closing")
            for request in requests:
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

    # Whose turn it is, for the thread

    def _joining(self, n_read: Mapping[Request, int], n_shared: int = 0) -> Request | None:
        """The request whose turn is next, if its text can be written together with others, for which there is room.

        `n_read`: of each of the others, the tokens in the cache; `n_shared` tokens are in cells of another one of them.
        """
        slot, job = self._slot, self._first_that_can_share(n_read)
        if job is None or self._size(job) > slot.n_ctx:
            return None
        n_shared += max(self._in_common(job, n_read).values(), default=0)
        return job if sum(map(n_expected, (job, *n_read))) - n_shared <= slot.n_cells else None

    def _first_that_can_share(self, n_read: Mapping[Request, int]) -> Request | None:
        """The request whose turn is next, if its text may be written together with these, were there room."""
        slot = self._slot
        if not self._waiting or not slot.is_usable:
            return None
        if len(n_read) >= min(slot.n_together, slot.caches[0].context.n_batch):  # each has a token in a decode
            return None
        if not all(map(may_share, n_read)):
            return None
        with self._changed:
            jobs = self._waiting.in_order()
        job = next((one for one in jobs if not isinstance(one, Request) or self._can_begin(one, n_read)), None)
        return job if isinstance(job, Request) and may_share(job) else None

    def _lacks_room(self, n_read: Mapping[Request, int], n_shared: int = 0) -> bool:
        """Whether the texts that are written shall pause, so that larger contexts hold them and the one that waits."""
        slot = self._slot
        if not slot.may_grow(math.inf) or (job := self._first_that_can_share(n_read)) is None:
            return False
        n_shared += max(self._in_common(job, n_read).values(), default=0)
        n_all, n_ctx = sum(map(n_expected, (job, *n_read))) - n_shared, self._size(job)
        is_possible = n_ctx < math.inf and slot.caches[0].savable is not None
        return is_possible and slot.may_grow(math.inf if n_ctx > slot.n_ctx else n_all)

    def _can_begin(self, request: Request, n_read: Mapping[Request, int]) -> bool:
        """Whether what a text continues is not being written, and what it has in common with others has been read."""
        if request.slot >= 0 and request not in self._paused:
            slots = {paused.slot for paused in list(self._paused.values())} | {one.slot for one in n_read}
            return request.slot not in slots
        common = self._in_common(request, n_read)
        n_most, n_now = max(common.values(), default=0), max((min(n, n_read[i]) for i, n in common.items()), default=0)
        return n_most - n_now < LEAST or n_most <= self._n_kept(request)

    def _in_common(self, request: Request, others: Iterable[Request]) -> dict[Request, int]:
        """Of these texts, how many tokens the prompt of one can share; not those that have less than is in memory."""
        if not request.reuses or request.slot >= 0:
            return {}
        found = dict[Request, int]()
        for other in others:
            if other.owner == request.owner and other.number not in request.common:
                request.common[other.number] = common_prefix(other.prompt, request.prompt[:-1])
            if (n := request.common.get(other.number, 0)) >= LEAST:
                found[other] = n
        return {other: n for other, n in found.items() if n >= self._n_kept(request)}

    def _n_kept(self, request: Request) -> int:
        """Tokens of a prompt that a text in memory has."""
        saved = self._slot.saved
        if request.kept is None or request.kept[0] != saved.sizes:
            found = saved.in_common(request.prompt, request.owner)
            request.kept = saved.sizes, max(found.values(), default=0)
        return request.kept[1]

    def _size(self, request: Request) -> float:
        """The context that a text needs; infinite: there is none."""
        try:
            return self._slot.size(len(request.prompt), request.config.stop.n_predict)
        except PromptError:
            return math.inf

    def _has_had_its_turn(self, request: Request, n_read: Mapping[Request, int], cache: Cache | None = None) -> bool:
        """Whether a text has to pause for other clients. It may if it can go on later, and if its cache can be copied.

        `n_read`: see _joining(); `cache`: its own beside others.
        """
        slot, most = self._slot, self._slot.config.turn_tokens
        if not most or request.n_turn < most or request.metrics.stop != INTERRUPTED:
            return False
        with self._changed:
            jobs = self._waiting.jobs
        if not any(self._waits_for(request, job, n_read) for job in jobs):
            return False
        if not slot.is_largest or slot.caches[0].savable is None:
            return False
        n_most = slot.config.cache_ram * 2**20  # as much memory as conversations that are kept
        paused = sum(cache.n_bytes for text in list(self._paused.values()) for cache in text.caches)
        caches = slot.caches if cache is None else [cache]
        return n_most < 0 or paused + sum(cache.n_state_bytes for cache in caches) <= n_most

    def _waits_for(self, request: Request, job: Request | Callable[[], None], n_read: Mapping[Request, int]) -> bool:
        """Whether a job could begin if a text paused, and is not of the same client."""
        if not isinstance(job, Request):
            return True
        is_other = job.client is None or job.client != request.client
        return is_other and (len(n_read) == 1 or self._can_begin(job, n_read))  # alone, it pauses for whatever waits

    def _run(self) -> None:
        """What the thread does."""
        raise NotImplementedError

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

"""RequestQueue: the requests of an engine, from submit() to their end, and the thread that writes their texts."""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count

from duo.engine.generation import Generation
from duo.engine.kv_store import SavedCache
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request
from duo.engine.turns import Turns
from duo.errors import BusyError, PromptError
from duo.llama import lifeline

log = logging.getLogger("duo.engine")


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

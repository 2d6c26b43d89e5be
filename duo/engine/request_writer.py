"""RequestWriter: writes the texts of requests with the contexts of a slot, one at a time."""

import threading

from duo.engine.cores import pin
from duo.engine.draft import DraftRequest
from duo.engine.generation import Generation
from duo.engine.request import TextRequest, choosing
from duo.engine.slot import Slot
from duo.engine.text import INTERRUPTED, Ending
from duo.spec.constants import DEFAULT
from duo.spec.schedule import Schedule
from duo.spec.session import Session


class RequestWriter:
    """Writes one text at a time. One thread calls write(); the other methods may be called from any thread."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._lock = threading.Lock()  # protects the next, so that cancel() never affects the next request
        self._request: TextRequest | None = None  # that is being written

    def write(self, request: TextRequest) -> None:
        """Process a request until its text ends or it is cancelled. Raises DuoError."""
        request.metrics.stop = INTERRUPTED
        if request.cancelled.is_set():
            return
        slot = self._slot
        with self._lock:
            self._request = request
        try:
            pin(slot.threads.cores)
            is_loading = not slot.n_ctx  # the first contexts are part of loading
            seconds = slot.reserve(len(request.prompt), request.config.stop.n_predict, request.cancelled)
            request.metrics.started += seconds if is_loading else 0.0
            with slot.watching():
                self._generate(request)
        finally:
            with self._lock:
                self._request = None

    def _generate(self, request: TextRequest) -> None:
        config, slot, sources = request.config, self._slot, request.sources
        target, cache = slot.target, slot.target_cache
        assert cache is not None
        if sources is None and slot.drafting.schedule == Schedule.OFF.value:  # there is nothing to learn
            sources = slot.sources()
        elif sources is None:
            sources = slot.sources(slot.draft, None if config.is_rejection else slot.remote, lookup=True)
        banned = target.end_tokens if config.stop.ignore_eos else ()
        verifier, guesser = choosing(target, config, banned, len(DEFAULT.ranks) if slot.n_branches else 0)
        slot.saved.begin(slot.caches, request.prompt)
        if not request.reuses:
            cache.clear()
        request.n_cached = cache.begin(request.prompt)
        slot.cores.begin()
        session = Session(request.prompt, target.n_vocab, judges_all=not config.is_rejection)
        ending = Ending(config.stop, target.piece, target.is_end)
        text = DraftRequest(session, ending, request.metrics, guesser, config.sampling, banned, config.mode)
        generation = Generation(
            cache.context, text, verifier, slot.threads, sources, request.on_prompt, config.n_logprobs, slot.cores
        )
        try:
            with slot.computing(generation.interrupt):
                generation.run(request.put, request.cancelled)
        finally:
            cache.end(session.accepted, session.n_prompt)
            request.stopped_by = ending.stopped_by

    def cancel(self, request: TextRequest) -> None:
        """End this request after the current decode, or in the middle of its prefill or warm-up."""
        request.cancelled.set()
        with self._lock:
            if self._request is request:
                self._slot.abort()

    def interrupt(self) -> None:
        """cancel() the request that is being written, if any, or end a warm-up without one."""
        with self._lock:
            if self._request is not None:
                self._request.cancelled.set()
            self._slot.abort()

"""RequestWriter: writes the texts of requests with the contexts of a slot, one at a time."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from duo.engine.cores import pin
from duo.engine.decoder import SavedCache
from duo.engine.generation import Generation, Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.proposers import RunningText
from duo.engine.request import Drafting, TextRequest, choosing
from duo.engine.text import INTERRUPTED, Ending
from duo.errors import DecodeError, ModelError
from duo.speculation.constants import DEFAULT
from duo.speculation.modes import Schedule

log = logging.getLogger("duo.engine")


@dataclass(slots=True)
class _Paused:
    """A text that others have interrupted, what the contexts held of it, and its slot."""

    generation: Generation
    caches: list[SavedCache]
    slot: int


class RequestWriter:
    """Writes one text at a time. One thread calls write(); the other methods may be called from any thread."""

    def __init__(self, slot: ModelPair) -> None:
        self._slot = slot
        self._paused: dict[TextRequest, _Paused] = {}
        self._lock = threading.Lock()  # protects the next, so that cancel() never affects the next request
        self.request: TextRequest | None = None  # that is being written

    def write(self, request: TextRequest, others_wait: Callable[[], bool] = lambda: False) -> bool:
        """Process a request until its text ends or it is cancelled: True. Raises DuoError.

        False: it pauses after its turn, because others wait, and write() is to be called again.
        """
        request.metrics.stop = INTERRUPTED
        request.began = request.began or request.metrics.clock.now()
        if request.cancelled.is_set():
            self.forget(request)
            return True
        slot = self._slot
        with self._lock:
            self.request = request
        try:
            pin(slot.threads.cores)
            is_loading = not slot.n_ctx  # the first contexts are part of loading
            seconds = slot.reserve(len(request.prompt), request.config.stop.n_predict, request.cancelled)
            request.metrics.started += seconds if is_loading else 0.0
            with slot.recorder.watching():
                return self._generate(request, others_wait)
        finally:
            with self._lock:
                self.request = None

    def _generate(self, request: TextRequest, others_wait: Callable[[], bool]) -> bool:
        slot, paused = self._slot, self._paused.pop(request, None)
        slot.saved.reserved = {one.slot for one in self._paused.values()}
        slot.cores.begin()
        if paused is None:
            generation = self._begin(request)
        else:
            generation = paused.generation
            slot.saved.keep(slot.caches)
            for cache, saved in zip(slot.caches, paused.caches, strict=True):
                cache.load(saved)
            slot.saved.take(paused.slot)
        target, text, most = slot.target_cache, generation.text, slot.config.turn_tokens
        assert target is not None
        can_pause = most and slot.is_largest and target.savable is not None

        def pauses(n_tokens: int) -> bool:
            return bool(can_pause) and n_tokens >= most and others_wait() and self._has_room()

        has_ended = True
        try:
            has_ended = self._run(generation, request, pauses)
            return has_ended
        finally:
            target.end(text.tokens, text.n_prompt)
            request.stopped_by = generation.text.ending.stopped_by
            if not has_ended:
                request.n_pauses += 1
                self._paused[request] = _Paused(generation, [cache.save() for cache in slot.caches], slot.saved.here)
                target.is_copied = True

    def _run(self, generation: Generation, request: TextRequest, pauses: Callable[[int], bool]) -> bool:
        """Generation.run(). If llama.cpp fails, all is read again, once; then the next text gets new contexts."""
        slot, failure = self._slot, None
        while True:
            try:
                with slot.computing(generation.interrupt):
                    has_ended = generation.run(request.put, request.cancelled, pauses)
            except (DecodeError, ModelError) as error:
                slot.reset()
                if failure is None:
                    failure = error
                    continue
                slot.is_usable = False
                if isinstance(error, ModelError):
                    raise
                raise ModelError(f"{slot.target.path.name}: no text can be written: {error}") from None
            if failure is not None:
                log.warning("%s: all was read again, with empty caches", failure)
            return has_ended

    def _has_room(self) -> bool:
        """Whether one more text may pause: those that do have as much memory as conversations that are kept."""
        slot = self._slot
        paused = sum(cache.n_bytes for text in list(self._paused.values()) for cache in text.caches)
        most = slot.config.cache_ram * 2**20
        return most < 0 or paused + sum(cache.n_state_bytes for cache in slot.caches) <= most

    def _begin(self, request: TextRequest) -> Generation:
        config, slot, sources = request.config, self._slot, request.sources
        target, cache = slot.target, slot.target_cache
        assert cache is not None
        sources = sources or self._proposers(request.drafting, is_rejection=config.is_rejection)
        banned = target.end_tokens if config.stop.ignore_eos else ()
        verifier, sampler = choosing(target, config, banned, len(DEFAULT.ranks) if slot.n_branches else 0)
        slot.saved.begin(slot.caches, request.prompt, request.slot)
        request.slot = slot.saved.here  # where it is now
        if not request.reuses:
            cache.clear()
        request.n_cached = cache.begin(request.prompt, None if request.scored is None else config.n_logprobs or 0)
        if request.scored is not None:
            request.scored = cache.scored
        ending = Ending(config.stop, target.piece, target.is_end)
        text = RunningText(
            list(request.prompt), ending, request.metrics, verifier, sampler, config.sampling, target.n_vocab, banned,
            config.mode, judges_all=not config.is_rejection,
        )  # fmt: skip
        return Generation(
            cache.context, text, slot.threads, sources, request.on_prompt, config.n_logprobs, slot.cores, request.scored
        )

    def _proposers(self, asked: Drafting, *, is_rejection: bool) -> Proposers:
        slot = self._slot
        drafting, lookup = asked.applied(slot.drafting), asked.lookup is not False
        if drafting.schedule == Schedule.OFF.value:  # there is nothing to learn
            return slot.proposers(drafts=False, remote=False, lookup=bool(asked.lookup))
        if not drafting.n_max:
            return Proposers()
        if slot.draft is not None and drafting != slot.drafting:
            return slot.limited(drafting, lookup=lookup)
        return slot.proposers(remote=not is_rejection, lookup=lookup)

    def forget(self, request: TextRequest) -> None:
        """A request that has paused is cancelled."""
        self._paused.pop(request, None)

    def cancel(self, request: TextRequest) -> None:
        """End this request after the current decode, or in the middle of its prefill or warm-up."""
        request.cancelled.set()
        with self._lock:
            if self.request is request:
                self._slot.abort()

    def interrupt(self) -> None:
        """cancel() the request that is being written, if any, or end a warm-up without one."""
        with self._lock:
            if self.request is not None:
                self.request.cancelled.set()
            self._slot.abort()

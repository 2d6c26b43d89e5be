"""RequestWriter: writes texts with the contexts of a slot, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from duo.config import GenerationConfig
from duo.engine.cores import pin, within
from duo.engine.draft import Draft, DraftRequest, TextSource
from duo.engine.generation import Generation, Sources
from duo.engine.request import Drafts, TextRequest
from duo.engine.slot import Slot
from duo.engine.text import INTERRUPTED, Ending
from duo.errors import UsageError
from duo.llama.grammar import Grammar
from duo.llama.model import Model
from duo.spec.constants import DEFAULT
from duo.spec.policy import Policy
from duo.spec.sampling import Guesser, chooser, without
from duo.spec.session import Session
from duo.spec.verify import Matching, Proposer, Rejection, Verifier


class RequestWriter:
    """Writes one text at a time. One thread calls write(); the other methods may be called from any thread."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._lock = threading.Lock()  # protects the two below, so that cancel() never affects the next request
        self._running: Generation | None = None
        self._request: TextRequest | None = None

    @property
    def policy(self) -> Policy | None:
        """The policy of the running text; None: there is none, or it has no policy."""
        running = self._running
        return running.policy if running is not None else None

    def write(self, request: TextRequest) -> None:
        """Process a request until its text ends or it is cancelled.

        Raises DecodeError, PromptError, MemoryLimitError, DeviceError, or UsageError for an invalid grammar.
        """
        request.metrics.stop = INTERRUPTED
        if request.cancelled.is_set():
            return
        with self._lock:
            self._request = request
        slot = self._slot
        try:
            pin(slot.threads.cores)
            is_loading = not slot.n_ctx  # the first contexts are part of loading
            seconds = slot.reserve(len(request.prompt), request.config.stop.n_predict, request.cancelled)
            request.metrics.started += seconds if is_loading else 0.0
            with slot.recorder.watching():
                self._generate(request, request.drafts or slot.drafts(request.config))
        finally:
            with self._lock:
                self._request = None

    def cancel(self, request: TextRequest) -> None:
        """End this request after the current decode, or in the middle of its prefill or warm-up."""
        request.cancelled.set()
        with self._lock:
            if self._request is request:
                self._interrupt()

    def interrupt(self) -> None:
        """cancel() the running request, if any, or end a warm-up without one."""
        with self._lock:
            if self._request is not None:
                self._request.cancelled.set()
            self._interrupt()

    def _interrupt(self) -> None:
        """Abort what is being computed. Called under the lock."""
        if self._running is not None:
            self._running.interrupt()
        self._slot.interrupt()

    def _generate(self, request: TextRequest, drafts: Drafts) -> None:
        slot, config, target = self._slot, request.config, self._slot.target
        cache, threads, cores = slot.target_cache, slot.threads, slot.cores
        assert cache is not None
        context = cache.context
        banned = target.end_tokens if config.stop.ignore_eos else ()
        verifier, guesser = choosing(target, config, banned, len(DEFAULT.ranks) if slot.n_branches else 0)
        request.n_cached = cache.begin(request.prompt)
        cores.begin()
        now = within(threads, cores.limit)
        context.set_threads(now.target, now.target_batch)
        text = DraftRequest(
            Session(request.prompt, context.n_vocab, judges_all=not config.is_rejection),
            Ending(config.stop, target.piece, target.is_end),
            request.metrics,
            context.n_vocab,
            guesser,
            config.sampling,
            banned,
            config.mode,
        )
        lookup = slot.lookup if drafts.lookup else None
        alone = Draft(threads.target, slot.alone if lookup is not None else None)
        others = (TextSource(lookup, slot.drafting.n_max),) if lookup is not None else ()
        sources = Sources(alone, drafts.local, drafts.remote, others)
        generation = Generation(context, text, verifier, threads, sources, request.on_prompt, config.n_logprobs, cores)
        with self._lock:
            self._running = generation
        try:
            generation.run(request.put, request.cancelled)
        finally:
            with self._lock:
                self._running = None
            context.resume()
            cache.end(generation.session.accepted)
            request.policy = generation.policy


def choosing(
    target: Model, config: GenerationConfig, banned: Sequence[int] = (), n_alternatives: int = 0
) -> tuple[Verifier, Guesser]:
    """The target's verifier, and the draft's sampler; `banned` tokens are never chosen. Raises UsageError."""
    sampling = config.sampling
    for token, _ in sampling.logit_bias:
        if not 0 <= token < target.n_vocab:
            raise UsageError(f"logit_bias: no token {token} in a vocabulary of {target.n_vocab}", "logit_bias")
    constraint = Grammar(target, config.grammar) if config.grammar is not None else None
    if config.is_rejection:
        sampling = without(sampling, banned)
        return Rejection(sampling, constraint), Proposer(sampling)
    sampler = chooser(sampling, banned, n_alternatives)
    return Matching(sampler, constraint), sampler

"""Slot: the contexts of a target and its draft, which write one text after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from duo.config import ContextConfig, DraftConfig, EngineConfig, GenerationConfig, ThreadConfig
from duo.engine.cache import Cache
from duo.engine.cores import pin
from duo.engine.draft import Draft, DraftRequest
from duo.engine.generation import Generation, RemoteSource
from duo.engine.local_draft import LocalDraft
from duo.engine.metrics import Metrics
from duo.engine.text import INTERRUPTED, Ending, TextStream
from duo.engine.threads import ON_CPU, plan_threads, tuned_threads, warn_of_threads
from duo.errors import PromptError, UsageError
from duo.llama.context import Context, cache_bytes
from duo.llama.devices import CPU
from duo.llama.grammar import Grammar
from duo.llama.memory import available_bytes
from duo.llama.model import Model
from duo.models.fitting import DEVICE_CTX
from duo.models.profiles import Profile
from duo.spec.policy import Policy
from duo.spec.sampling import Guesser, chooser, without
from duo.spec.schedule import ALL, Schedule
from duo.spec.session import Session
from duo.spec.types import Step
from duo.spec.verify import Matching, Proposer, Rejection, Verifier

log = logging.getLogger("duo.engine")

# Quantisations whose kernels give the same bits for two rows or more: see tests/process/llama/test_exact.py.
_EXACT = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")


@dataclass(slots=True, eq=False)
class TextRequest:
    """A text that is asked for, and what becomes of it."""

    prompt: Sequence[int]
    config: GenerationConfig
    put: Callable[[Step], None]  # told every step, on the engine's thread
    on_prompt: Callable[[int], None] = lambda _: None  # told how many tokens of a long prompt are decoded
    metrics: Metrics = field(default_factory=Metrics)
    n_cached: int = 0  # tokens of the prompt that were in the KV cache already
    policy: Policy | None = None  # of the last draft that took part
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Drafts:
    """What may draft for a text, and the threads to compute with; None: those of the slot."""

    local: Draft | None = None
    remote: RemoteSource | None = None
    threads: ThreadConfig | None = None


class Slot:
    """Writes texts, and keeps in its KV caches what the next one may begin with. Used by one thread, cancel() excepted.

    The contexts are made for the first text, and made again for one that needs more room than there is.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        config: EngineConfig,
        remote: RemoteSource | None = None,
        profile: Profile | None = None,
    ) -> None:
        """`profile` is where what is learned about this pair comes from. Raises UsageError."""
        kept = profile.load() if profile is not None else {}
        self.profile = profile
        self.target = target
        self.draft_model = draft
        self.config = config
        self.drafting = config.drafting()
        self.remote = remote
        # As far as the models say; their contexts may say no.
        self.can_speculate = draft is not None and draft.can_roll_back and not target.is_recurrent
        threads = plan_threads(
            config,
            drafting=self.can_speculate,
            target_on=target.places,
            draft_on=draft.places if draft is not None else ON_CPU,
        )
        self.threads: ThreadConfig = tuned_threads(threads, config, kept)
        warn_of_threads(self.threads, beside=self.can_speculate and Schedule.ASYNC in schedules_of(self.drafting))
        self.policy = self.new_policy(self.drafting)
        self.policy.restore_kept(kept.get("policy"))
        self.draft: LocalDraft | None = None
        self.n_ctx = 0  # of the contexts; 0: there are none yet
        self._is_largest = False  # whether they were made for texts of unknown length
        self.target_context: Context | None = None
        self.target_cache: Cache | None = None
        self.draft_cache: Cache | None = None
        self._contexts: list[Context] = []
        self._end_tokens: list[int] | None = None
        self._lock = threading.Lock()  # for the two below, so that an interruption never hits the next text
        self._running: Generation | None = None
        self._request: TextRequest | None = None

    def close(self) -> None:
        """Free the contexts."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        self.n_ctx = 0

    def new_policy(self, drafting: DraftConfig) -> Policy:
        """A policy for a draft in this process, which knows nothing yet."""
        return Policy(drafting.n_max, drafting.n_ahead, schedules_of(drafting), self.threads.draft)

    def new_draft(self, policy: Policy) -> LocalDraft:
        """The draft model with another policy; reserve() must have made its context."""
        assert self.draft_cache is not None
        return LocalDraft(self.draft_cache, policy, self.threads)

    def reserve(self, n_prompt: int, n_predict: int, stop: threading.Event | None = None) -> None:
        """Make contexts that hold a prompt of `n_prompt` tokens and `n_predict` more (-1: as many as can be).

        Does nothing if there are some. A remote draft is not waited for any more once `stop` is set. Raises
        PromptError, MemoryLimitError, ModelError or UsageError.
        """
        n_ctx = self._context_size(n_prompt, n_predict)
        if n_ctx <= self.n_ctx:
            return
        self.close()
        target, draft = self._make_contexts(n_ctx)
        if self.remote is not None:
            self.remote.ready(self.target, target, stop)
        self.target_context, self.target_cache = target, Cache(target)
        self.draft_cache = Cache(draft) if draft is not None else None
        self.draft = self.new_draft(self.policy) if draft is not None else None
        self.n_ctx, self._is_largest = n_ctx, n_predict < 0

    def attach(self, remote: RemoteSource) -> None:
        """Let remote drafts take part from now on; makes contexts that are as large as is reasonable."""
        if self.remote is not remote:
            self.close()
            self.remote = remote
        remote.limit(self.drafting, self.threads.target)
        self.reserve(0, -1)

    def write(self, request: TextRequest, drafts: Drafts | None = None) -> None:
        """Write a text until its end, or until it is cancelled; what happened is in `request`.

        With `drafts` instead of the slot's own. Raises DecodeError, PromptError, or UsageError for a grammar that
        cannot be used.
        """
        config, stop = request.config, request.config.stop
        request.metrics.stop = INTERRUPTED
        if request.cancelled.is_set():
            return
        pin(self.threads.cores)
        self.reserve(len(request.prompt), stop.n_predict, request.cancelled)
        assert self.target_cache is not None
        context = self.target_cache.context
        if drafts is None:
            drafts = Drafts(self.draft, None if config.is_rejection else self.remote)
        threads = drafts.threads or self.threads
        banned = self._banned(config)
        verifier, guesser = choosing(self.target, config, banned)
        request.n_cached = self.target_cache.begin(request.prompt)
        context.set_threads(threads.target, threads.target_batch)
        piece = self.target.piece
        generation = Generation(
            context,
            DraftRequest(
                Session(request.prompt, context.n_vocab, judges_all=not config.is_rejection),
                Ending(stop, TextStream(piece, stop.stop_strings), self.target.is_end),
                request.metrics,
                context.n_vocab,
                guesser,
                config.sampling,
                banned,
                config.mode,
            ),
            verifier,
            threads,
            drafts.local,
            drafts.remote,
            request.on_prompt,
        )
        with self._lock:
            self._running, self._request = generation, request
        try:
            generation.run(request.put, request.cancelled)
        finally:
            with self._lock:
                self._running = self._request = None
            context.resume()
            self.target_cache.end(generation.session.accepted)
            request.policy = generation.policy

    def forget(self) -> None:
        """Leave nothing of an earlier text in the KV caches."""
        for cache in filter(None, (self.target_cache, self.draft_cache)):
            cache.context.rollback(0)

    def cancel(self, request: TextRequest) -> None:
        """Let this text end soon, from any thread: a long prompt is not read to its end."""
        request.cancelled.set()
        with self._lock:
            if self._running is not None and self._request is request:
                self._running.interrupt()

    def interrupt(self) -> None:
        """Let the present text, if there is one, end soon, from any thread."""
        with self._lock:
            request = self._request
        if request is not None:
            self.cancel(request)

    def _banned(self, config: GenerationConfig) -> list[int]:
        """Tokens that the text may not have."""
        if not config.stop.ignore_eos:
            return []
        if self._end_tokens is None:
            self._end_tokens = self.target.end_tokens()
        return self._end_tokens

    def _context_size(self, n_prompt: int, n_predict: int) -> int:
        """Size of the context in tokens: what was asked for, or what the text needs.

        At most what the model was trained for, unless asked for more; to the end (-1) it is also limited to half of the
        memory that is there, and to DEVICE_CTX where a device has some of it. Raises PromptError if the prompt does not
        fit.
        """
        model, asked = self.target, self.config.n_ctx
        if asked:
            n_ctx = asked
        elif n_predict >= 0:
            n_ctx = min(model.n_ctx_train, n_prompt + n_predict)
        elif self._is_largest and n_prompt <= self.n_ctx:
            n_ctx = self.n_ctx
        else:
            n_ctx = self._largest(n_prompt)
        if n_prompt > n_ctx:
            origin = "n_ctx" if asked else "what the model was trained for"
            raise PromptError(f"the prompt has {n_prompt} tokens, the context {n_ctx} ({origin})")
        return n_ctx

    def _largest(self, n_prompt: int) -> int:
        """The largest context that is reasonable for a text of unknown length."""
        model = self.target
        n_ctx = model.n_ctx_train if model.places == {CPU} else max(n_prompt, min(DEVICE_CTX, model.n_ctx_train))
        config = self.config.context(n_ctx, 1, 1, 0)
        available, full = available_bytes(), cache_bytes(model, config)
        if available is not None and full > available // 2:
            n_ctx = max(n_prompt, n_ctx * (available // 2) // full)
        return n_ctx

    def _make_contexts(self, n_ctx: int) -> tuple[Context, Context | None]:
        """Contexts of the target and, if there is one that can be used, of the draft."""
        config, drafting, threads = self.config, self.drafting, self.threads
        if config.exact and self.target.quantisation not in _EXACT:
            log.warning(
                "%s is not bit-equal from five rows on: near-ties may still differ in spite of exact decodes",
                self.target.quantisation,
            )
        n_max = drafting.n_max if self.draft_model is not None or self.remote is not None else 0
        wanted = config.context(n_ctx, threads.target, threads.target_batch, n_max)
        context = self._context(self.target, wanted)
        if config.exact and context.n_rollback == 0:
            log.warning("%s cannot roll back its cache: its decodes are not exact", self.target.path.name)
            self.close()
            context = self._context(self.target, replace(wanted, exact=False))
        if not n_max:
            return context, None
        if not context.probe_rollback():
            log.warning("%s cannot roll back its cache: speculation is off", self.target.path.name)
            self.remote = None
            return context, None
        most = context.n_rollback
        if most and config.draft_n_max is not None and most < n_max:
            log.warning(
                "draft_n_max %d: %s can roll back %d tokens, so no more are verified",
                config.draft_n_max,
                self.target.path.name,
                most,
            )
        return context, self._draft_context(n_ctx)

    def _draft_context(self, n_ctx: int) -> Context | None:
        draft = self.draft_model
        if draft is None:
            return None
        if not draft.can_roll_back:
            log.warning("%s cannot roll back its cache: speculation is off", draft.path.name)
            return None
        config = ContextConfig(
            min(n_ctx + self.drafting.n_ahead, draft.n_ctx_train),
            1,
            self.threads.target,
            self.config.n_batch,
            self.config.n_ubatch,
            n_outputs_max=Policy.PROBE_TOKENS,
        )
        return self._context(draft, config)

    def _context(self, model: Model, config: ContextConfig) -> Context:
        context = Context(model, config)
        self._contexts.append(context)
        return context


def schedules_of(drafting: DraftConfig) -> tuple[Schedule, ...]:
    """The schedules to choose from."""
    return ALL if drafting.schedule == "auto" else (Schedule(drafting.schedule),)


def choosing(target: Model, config: GenerationConfig, banned: Sequence[int] = ()) -> tuple[Verifier, Guesser]:
    """What chooses the target's tokens, and the draft's; `banned` ones are never chosen. Raises UsageError."""
    sampling = config.sampling
    for token, _ in sampling.logit_bias:
        if not 0 <= token < target.n_vocab:
            raise UsageError(f"logit_bias: no token {token} in a vocabulary of {target.n_vocab}", "logit_bias")
    constraint = Grammar(target, config.grammar) if config.grammar is not None else None
    if config.is_rejection:
        sampling = without(sampling, banned)
        return Rejection(sampling, constraint), Proposer(sampling)
    sampler = chooser(sampling, banned)
    return Matching(sampler, constraint), sampler

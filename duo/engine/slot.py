"""Slot: the contexts of a target and its draft, used for one request at a time."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

from duo.config import MAX_BRANCHES, DraftConfig, EngineConfig, GenerationConfig, ThreadConfig
from duo.engine.cache import Cache
from duo.engine.contexts import can_verify, context_size, draft_context, target_context
from duo.engine.cores import ON_CPU, check_threads, follows_cores, plan_threads, tuned_threads, within
from duo.engine.free_cores import CoresInUse
from duo.engine.generation import DraftChooser
from duo.engine.local_draft import LocalDraft
from duo.engine.profile import ProfileRecorder
from duo.engine.request import Drafts
from duo.engine.translated import MORE_TOKENS, Translation
from duo.engine.warmup import time_branches, time_draft, warm_up
from duo.llama.build import CPU
from duo.llama.context import Context
from duo.llama.model import Model
from duo.models.profiles import Profile
from duo.spec.lookup import Lookup
from duo.spec.policy import Policy
from duo.spec.schedule import ALL, Schedule

log = logging.getLogger("duo.engine")


class ConnectedDrafts(DraftChooser, Protocol):
    """Remote drafts, which connect and disconnect. Called on the target's thread."""

    def limit(self, drafting: DraftConfig, n_target_threads: int) -> None:
        """Set the limits of drafting, and the target's threads while a remote draft is used."""

    def ready(self, target: Model, context: Context, stop: threading.Event | None) -> None:
        """Announce the target. Waits a while for a draft that is starting, until `stop` is set."""


class Slot:
    """Makes the contexts of a pair: for its first text, and again for one that needs larger ones.

    One thread calls it, except interrupt().
    """

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        config: EngineConfig,
        remote: ConnectedDrafts | None = None,
        profile: Profile | None = None,
        translation: Translation | None = None,
    ) -> None:
        """`profile`: what earlier runs learned about this pair. `translation`: if the vocabularies differ.

        Raises UsageError.
        """
        kept = profile.load() if profile is not None else {}
        self.profile = profile
        self.target = target
        self.draft_model = draft
        self.translation = translation
        self.config = config
        self.drafting = config.drafting()
        self.remote = remote
        # According to the models: llama.cpp may still refuse to roll back their contexts.
        self.can_speculate = draft is not None and draft.can_roll_back and not target.is_recurrent
        threads = plan_threads(
            config,
            drafting=self.can_speculate,
            target_on=target.places,
            draft_on=draft.places if draft is not None else ON_CPU,
        )
        self.threads: ThreadConfig = tuned_threads(threads, config, kept)
        check_threads(self.threads, beside=self.can_speculate and Schedule.ASYNC in schedules_of(self.drafting))
        on_cpu = CPU in target.places or (draft is not None and CPU in draft.places)
        self.cores = CoresInUse(follows=on_cpu and follows_cores(config))
        # Without a draft, only the lookup has candidates.
        self.alone = Policy(self.drafting.n_max, self.drafting.n_ahead, (Schedule.OFF,))
        self.policy = self.new_policy(self.drafting) if draft is not None else self.alone
        self.policy.restore_kept(kept.get("policy"))
        self.recorder = ProfileRecorder(self.policy, self._n_busiest())
        looks_up = config.lookup != "off" and self.drafting.n_max and (target.can_roll_back or draft is not None)
        self.lookup = Lookup() if looks_up else None
        self.draft: LocalDraft | None = None
        self.n_ctx = 0  # of the contexts; 0: not made yet
        self._is_largest = False  # whether they were made for a text of unknown length
        self.target_context: Context | None = None
        self.target_cache: Cache | None = None
        self.draft_cache: Cache | None = None
        self._contexts: list[Context] = []
        self._lock = threading.Lock()
        self._warming: list[Context] = []  # contexts that are being warmed up; the lock protects it

    @property
    def looks_up(self) -> bool:
        """Whether the text itself is a draft, too, if a request wants it."""
        return self.lookup is not None

    def close(self) -> None:
        """Free the contexts."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        self.n_ctx = 0

    def _n_busiest(self) -> int:
        """The most threads that compute at once on the CPU."""
        target = self.threads.target if CPU in self.target.places else 1
        has_draft = self.can_speculate and self.draft_model is not None and CPU in self.draft_model.places
        return max(target, sum(self.threads.beside)) if has_draft else target

    def new_policy(self, drafting: DraftConfig) -> Policy:
        """A new policy for the local draft."""
        schedules, threads = schedules_of(drafting), self.threads
        branches = drafting.branches if self.n_branches else 0
        aborts = self.draft_model is None or self.draft_model.places == {CPU}
        return Policy(
            drafting.n_max,
            drafting.n_ahead,
            schedules,
            threads.draft,
            apart=threads.apart,
            branches=branches,
            aborts=aborts,
        )

    @property
    def n_branches(self) -> int:
        """Room for branches in the draft's context: none for a draft with another vocabulary."""
        is_possible = self.translation is None and Schedule.ASYNC in schedules_of(self.drafting)
        most = MAX_BRANCHES if self.drafting.branches is None else self.drafting.branches
        return most if is_possible else 0

    def new_draft(self, policy: Policy) -> LocalDraft:
        """The local draft with another policy; its context must have been made by reserve()."""
        assert self.draft_cache is not None
        return LocalDraft(self.draft_cache, policy, self.threads, self.translation, self.cores)

    @property
    def _threads_now(self) -> ThreadConfig:
        """Those that leave other programs their cores."""
        return within(self.threads, self.cores.limit)

    def reserve(self, n_prompt: int, n_predict: int, stop: threading.Event | None = None) -> float:
        """Make contexts for a prompt of `n_prompt` tokens and `n_predict` more (-1: unknown), unless there are any.

        Returns the seconds that this took, without the wait for a remote draft that is starting, which `stop` ends.
        Raises PromptError, MemoryLimitError, ModelError or UsageError.
        """
        n_ctx = context_size(self.target, self.config, n_prompt, n_predict, self.n_ctx if self._is_largest else 0)
        if n_ctx <= self.n_ctx:
            return 0.0
        start = time.perf_counter()
        self.close()
        self.cores.begin()
        threads = self._threads_now
        has_source = self.draft_model is not None or self.remote is not None or self.lookup is not None
        n_max = self.drafting.n_max if has_source else 0
        target = target_context(self.target, self.config, threads, n_ctx, n_max)
        self._contexts.append(target)
        draft = None
        if n_max and not can_verify(self.target, target, self.config, n_max):
            self.remote, self.lookup, n_max = None, None, 0
        elif n_max and self.draft_model is not None:
            n_draft = n_ctx if self.translation is None else math.ceil(MORE_TOKENS * n_ctx)
            draft = draft_context(self.draft_model, self.config, threads, n_draft, self.n_branches)
        if draft is not None:
            self._contexts.append(draft)
        if self.config.warmup:
            self._warm_up(target, draft, n_max, stop)
            self.recorder.check()
        seconds = time.perf_counter() - start
        if self.remote is not None:
            self.remote.ready(self.target, target, stop)
        self.target_context, self.target_cache = target, Cache(target, exact=self.config.exact)
        self.draft_cache = Cache(draft) if draft is not None else None
        self.draft = self.new_draft(self.policy) if draft is not None else None
        self.n_ctx, self._is_largest = n_ctx, n_predict < 0
        return seconds

    def _warm_up(self, target: Context, draft: Context | None, n_max: int, stop: threading.Event | None) -> None:
        """Warm up new contexts, unless `stop` is set, and measure the draft."""
        with self._lock:
            self._warming = list(self._contexts)
        try:
            if stop is None or not stop.is_set():  # once it is set, all decodes are aborted
                # Without a draft, only a text that repeats itself uses more sizes than these.
                n_most = n_max if draft is not None or self.remote is not None else 1
                warm_up(target, self.target, n_most + 1, n_most + 1)
                if draft is not None and self.draft_model is not None:
                    warm_up(draft, self.draft_model, 2)
                    threads = self._threads_now
                    self.policy.use_cores(self.cores.limit)
                    time_draft(draft, self.draft_model, threads.draft, self.policy)
                    n_beside = threads.beside[1]
                    draft.set_threads(n_beside, n_beside)
                    time_branches(draft, self.draft_model, self.policy)
        finally:
            with self._lock:
                self._warming = []
            for context in self._contexts:
                context.resume()

    def drafts(self, config: GenerationConfig) -> Drafts:
        """The drafts for a text."""
        if self.drafting.schedule == Schedule.OFF.value:  # there is nothing to learn
            return Drafts()
        return Drafts(self.draft, None if config.is_rejection else self.remote, lookup=True)

    def forget(self) -> None:
        """Clear the KV caches."""
        for cache in filter(None, (self.target_cache, self.draft_cache)):
            cache.context.rollback(0)

    def interrupt(self) -> None:
        """Abort a warm-up. From any thread."""
        with self._lock:
            for context in self._warming:
                context.abort()

    def attach(self, remote: ConnectedDrafts) -> None:
        """Use remote drafts from now on; makes contexts for texts of unknown length."""
        if self.remote is not remote:
            self.close()
            self.remote = remote
        remote.limit(self.drafting, self.threads.target)
        self.reserve(0, -1)


def schedules_of(drafting: DraftConfig) -> tuple[Schedule, ...]:
    """The schedules that the policy may choose from."""
    return ALL if drafting.schedule == "auto" else (Schedule(drafting.schedule),)

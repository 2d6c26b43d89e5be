"""ModelPair: the contexts of a target and its drafts, and what belongs to them: threads, controller, profiles."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from duo.config import MAX_BRANCHES, DraftConfig, EngineConfig, ThreadConfig
from duo.engine.cache_file import identity_of, read_cache, write_cache
from duo.engine.contexts import (
    SHARED_CELLS,
    can_verify,
    context_size,
    draft_context,
    head_context,
    head_limits,
    n_shared,
    takes_turns,
    target_context,
    time_draft,
    warm_up,
)
from duo.engine.cores import ON_CPU, CoresInUse, check_threads, follows_cores, plan_threads, tuned_threads, within
from duo.engine.generation import Proposers
from duo.engine.kv_store import Cache, KvStore
from duo.engine.local_draft import LocalDraft
from duo.engine.memories import Memories
from duo.engine.profile import ProfileRecorder, Profiles
from duo.engine.proposers import ConnectedDrafts
from duo.engine.translated import MORE_TOKENS, Translation
from duo.errors import PromptError
from duo.llama.build import CPU
from duo.llama.context import Context
from duo.llama.model import Model
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates, estimates_for
from duo.speculation.modes import Schedule, schedules_of
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.target_costs import TargetCosts

log = logging.getLogger("duo.engine")
LAYER = "MTP layer"  # the name of the target's own as a draft
_MORE_BYTES = 2**28  # of a saved text, beside its cells: tokens, and the states of recurrent layers


class ModelPair:
    """Makes the contexts of a pair, and larger ones when a text needs them. One thread calls it, except for abort()."""

    def __init__(
        self, target: Model, draft: Model | None, config: EngineConfig, remote: ConnectedDrafts | None = None,
        profiles: Profiles | None = None, translation: Translation | None = None, *, head: Model | None = None,
    ) -> None:  # fmt: skip
        """`draft`: also the target itself, for its MTP layer. `profiles`: of this pair. Raises UsageError.

        `translation`: if the vocabularies differ. `head`: drafts in turns, beside the draft; as for `draft`.
        """
        self.profiles = profiles or Profiles()
        self.target = target
        self.draft_model = draft
        self.translation = translation
        self.config = config
        self.drafting = config.drafting()
        self.remote = remote
        # According to the models: llama.cpp may still refuse to roll back their contexts.
        self.uses_head = draft is not None and (draft is target or bool(draft.head_kind))
        can_draft = draft is not None and (draft.can_roll_back or self.uses_head)
        self.can_speculate = can_draft and not target.is_recurrent
        target_on, draft_on = target.places, draft.places if draft is not None else ON_CPU
        planned = plan_threads(config, drafting=self.can_speculate, target_on=target_on, draft_on=draft_on)
        self.threads = tuned_threads(planned, config, self.profiles.threads)
        shares = draft is not None and takes_turns(draft, target)
        is_forced = self.drafting.schedule != "auto" or self.threads.separate_devices
        self.in_turns = self.uses_head and (shares or not is_forced)
        is_async = Schedule.ASYNC in schedules_of(self.drafting) and not self.in_turns
        check_threads(self.threads, concurrent=self.can_speculate and is_async)
        on_cpu = CPU in target_on or (draft is not None and CPU in draft_on)
        self.cores = CoresInUse(follows=on_cpu and follows_cores(config))
        # Room for branches in the draft's context: none for a draft with another vocabulary.
        n_branches = MAX_BRANCHES if self.drafting.branches is None else self.drafting.branches
        self.n_branches = n_branches if translation is None and is_async and not self.uses_head else 0
        looks_up = config.lookup != "off" and self.drafting.n_max and (target.can_roll_back or draft is not None)
        self.lookup = PromptLookup() if looks_up else None
        self.controller = Controller(self.drafting.n_most if looks_up else 0)
        self.memories = Memories(target=self.controller.target if config.memory is None else None)
        self.estimates = self.new_estimates(self.controller.target, self.drafting) if draft is not None else None
        self.head_model = head if Schedule.SYNC in schedules_of(self.drafting) else None
        self.has_head = self.uses_head or self.head_model is not None
        self.head = self.new_estimates(self.controller.target, self.drafting, beside=True) if self.head_model else None
        self.controller.known |= {draft.name: draft for draft in self._estimates}
        self.profiles.restore(self.controller, self._estimates)
        n_both = sum(self.threads.concurrent) if self.can_speculate and CPU in draft_on else 1
        n_busiest = max(n_both, self.threads.target if CPU in target_on else 1)  # threads at once on the CPU
        self.recorder = ProfileRecorder(self.controller, self._estimates, n_busiest)
        self.draft: LocalDraft | None = None  # once there are contexts,
        self._head_draft: LocalDraft | None = None  # and the head beside it
        self.n_together = n_shared(target, draft, config)  # texts that may be written together
        self.n_ctx = self.n_cells = 0  # of the contexts, and for all these texts; 0: not made yet
        self._n_wanted = 0  # cells for all: there may have been no memory for so many
        self.is_usable = False  # whether there are contexts, and llama.cpp has not failed with them
        self.is_largest = False  # whether they were made for a text of unknown length
        self.target_cache: Cache | None = None
        self.draft_cache: Cache | None = None
        self.saved = KvStore(config.n_slots, config.cache_ram * 2**20 if config.cache_ram >= 0 else sys.maxsize)
        self._contexts: list[Context] = []
        self._lock = threading.Lock()  # protects the next
        self._abort: Callable[[], None] = lambda: None  # ends what is being computed

    @property
    def draft_name(self) -> str | None:
        """The file of the draft, for people; None: there is none."""
        if self.draft_model is self.target:
            return "its MTP layer"
        return self.draft_model.path.name if self.draft_model is not None else None

    def close(self) -> None:
        """Free the contexts."""
        self.is_usable = False
        while self._contexts:
            self._contexts.pop(0).close()

    def new_estimates(self, target: TargetCosts, drafting: DraftConfig, *, beside: bool = False) -> DraftEstimates:
        """What will be known of the local draft with these limits, or of the head `beside` it."""
        model, is_head = self.head_model if beside else self.draft_model, self.uses_head or beside
        drafting, more = head_limits(model, drafting) if is_head and model is not None else (drafting, {})
        return estimates_for(
            target,
            drafting if self.n_branches and not beside else replace(drafting, branches=0),
            (self.threads.target,) if beside else self.threads.draft,
            name=LAYER if model is None or model is self.target else model.path.stem,
            separate_devices=self.threads.separate_devices and not beside,
            aborts=model is None or model.places == {CPU},
            in_turns=self.in_turns or beside,
            **more,
        )

    @property
    def _estimates(self) -> list[DraftEstimates]:
        return [each for each in (self.estimates, self.head) if each is not None]

    def new_draft(self, estimates: DraftEstimates) -> LocalDraft:
        """The local draft with other limits; its context must have been made by reserve()."""
        assert self.draft_cache is not None
        return LocalDraft(self.draft_cache, estimates, self.translation, is_head=self.uses_head)

    def proposers(self, *, drafts: bool = True, lookup: bool = True, remote: bool = True) -> Proposers:
        """What may propose candidates for a text: the local `drafts`, its own tokens, and `remote` drafts."""
        found = [draft for draft in (self.draft, self._head_draft) if draft is not None and drafts]
        others = self.memories.proposers(self.lookup, self.drafting.n_most) if lookup else []
        connected = self.remote if remote else None
        return Proposers(self.controller, found, connected, others) if found or others or connected else Proposers()

    def limited(
        self, drafting: DraftConfig, *, lookup: bool, remote: bool = False, knows: bool = True,
        schedules: Sequence[Schedule] = (),
    ) -> Proposers:  # fmt: skip
        """What may propose candidates within other limits, or in these `schedules`. What a draft learns is not kept.

        `knows`: whether they begin with what was learned so far.
        """
        controller = Controller(min(self.controller.n_most, drafting.n_most), self.controller.target if knows else None)
        controller.target.warm_s = self.controller.target.warm_s
        controller.n_alternatives = self.controller.n_alternatives
        drafts = []
        if self.draft is not None and self.estimates is not None:
            estimates = self.new_estimates(controller.target, drafting)
            asked = [each for each in estimates.schedules if each in schedules]
            estimates.schedules = tuple(asked) or estimates.schedules
            drafts = [self.new_draft(estimates)]
            if knows:
                estimates.restore(self.estimates.state())
        others = self.memories.proposers(self.lookup, drafting.n_most) if lookup else []
        connected = self.remote if remote else None
        return Proposers(controller, drafts, connected, others) if drafts or others or connected else Proposers()

    def size(self, n_prompt: int, n_predict: int) -> int:
        """The context that a text needs: see context_size()."""
        return context_size(self.target, self.config, n_prompt, n_predict, self.n_ctx if self.is_largest else 0)

    def may_grow(self, n_cells: float) -> bool:
        """Whether texts of known length, for which contexts were made, may get new ones if they need `n_cells`."""
        return self.n_together > 1 and not self.is_largest and n_cells > max(self.n_cells, self._n_wanted)

    def reserve(self, n_prompt: int, n_predict: int, stop: threading.Event | None = None, n_beside: int = 0) -> float:
        """Make contexts for a prompt of `n_prompt` tokens and `n_predict` more (-1: unknown), unless there are any.

        `n_beside`: tokens of texts that may be written together with it. Returns the seconds that this took, without
        the wait for a remote draft that is starting, which `stop` ends. Raises PromptError, MemoryLimitError,
        ModelError or UsageError.
        """
        n_ctx = self.size(n_prompt, n_predict)
        lacks_room = n_beside > 0 and self.may_grow(n_prompt + max(0, n_predict) + n_beside)
        if n_ctx <= self.n_ctx and self.is_usable and not lacks_room:
            return 0.0
        n_ctx = max(n_ctx, self.n_ctx)
        start = time.perf_counter()
        self.close()
        self.cores.begin()
        threads = within(self.threads, self.cores.limit)  # those that leave other programs their cores
        has_source = self.draft_model is not None or self.remote is not None or self.lookup is not None
        n_max = self.drafting.n_max if has_source else 0
        # Rows of a model that rolls back to earlier states need memory for these.
        n_most = self.drafting.n_most if n_max and self.lookup is not None and self.target.can_roll_back else n_max
        n_cells = max(n_ctx, min(self.n_together * n_ctx, SHARED_CELLS)) if n_beside or n_predict < 0 else n_ctx
        self._n_wanted = n_cells = n_cells if n_predict < 0 else max(n_cells, n_ctx + n_beside)
        sizes = (n_ctx, n_most, self.n_together, n_cells)
        target = target_context(self.target, self.config, threads, *sizes, has_head=self.has_head)
        self.controller.n_alternatives = len(target.alternatives)
        self._contexts.append(target)
        draft: Context | None = None
        if n_max and not can_verify(self.target, target, self.config, n_max):
            self.remote, self.lookup, n_max = None, None, 0
        elif n_max and self.draft_model is not None and self.uses_head:
            draft = head_context(self.draft_model, self.config, threads, target)
            if draft is not None and draft.model is not self.draft_model:  # the target, whose MTP layer drafts instead
                self.draft_model = draft.model
                self.estimates = self.new_estimates(self.controller.target, self.drafting)
                self.recorder.follow(self._estimates)
        elif n_max and self.draft_model is not None:
            n_draft = n_ctx if self.translation is None else math.ceil(MORE_TOKENS * n_ctx)
            in_turns = self.translation is None and Schedule.SYNC in schedules_of(self.drafting)
            beside = (self.n_together, n_cells) if in_turns else ()  # see JointDraft
            draft = draft_context(self.draft_model, self.config, threads, n_draft, self.n_branches, *beside)
        head = head_context(self.head_model, self.config, threads, target) if self.head_model and n_max else None
        self._contexts += [context for context in (draft, head) if context is not None]
        made = ((self.estimates, draft), (self.head, head))
        self.controller.known = {one.name: one for one, context in made if one is not None and context is not None}
        if self.config.warmup:
            with self.recorder.watching():
                self._warm_up((target, draft, head), n_max, threads, stop)
        seconds = time.perf_counter() - start
        if self.remote is not None:
            self.remote.drafting, self.remote.costs = self.drafting, self.controller.target
            self.remote.ready(self.target, target, stop)
        self.target_cache = Cache(target, exact=self.config.exact)
        self.draft_cache = Cache(draft) if draft is not None else None
        self.draft = self.new_draft(self.estimates) if draft is not None and self.estimates is not None else None
        self._head_draft = LocalDraft(Cache(head), self.head, is_head=True) if head and self.head else None
        self.is_largest = n_predict < 0 or (self.is_largest and n_ctx == self.n_ctx)
        self.n_ctx, self.n_cells, self.is_usable = n_ctx, target.n_cells, True
        return seconds

    def _warm_up(
        self, contexts: tuple[Context, Context | None, Context | None], n_max: int, threads: ThreadConfig,
        stop: threading.Event | None,
    ) -> None:  # fmt: skip
        """Warm up new contexts, of the target, its draft and its layer, unless `stop` is set; measure the drafts."""
        target, draft, head = contexts
        with self.computing(self._abort_contexts):
            if stop is not None and stop.is_set():  # once it is set, all decodes are aborted
                return
            # Without a draft, only a text that repeats itself uses more sizes than these.
            n_most = n_max if draft is not None or self.remote is not None else 1
            self.controller.target.warm_s = warm_up(target, self.target, n_most + 1, n_most + 1)
            self.controller.use_cores(self.cores.limit)
            own = replace(threads, draft=(threads.target,))
            of_draft = draft, self.draft_model, self.estimates, threads
            for context, model, estimates, used in (of_draft, (head, self.head_model, self.head, own)):
                if context is not None and model is not None and estimates is not None:
                    estimates.costs.use_cores(self.cores.limit)
                    warm_up(context, model, 2)
                    time_draft(context, model, used, estimates)

    def reset(self) -> None:
        """Empty the contexts, whatever is in them."""
        for context in self._contexts:
            context.reset()
        for cache in self.caches:
            cache.clear()

    def forget(self) -> None:
        """Clear the KV caches, and those that are saved."""
        self.saved.clear()
        for context in self._contexts:
            context.rollback(0)

    @property
    def kept(self) -> list[int]:
        """Tokens of the texts in the caches, by slot. From any thread."""
        here = len(self.target_cache.tokens) if self.target_cache is not None else 0
        sizes = {self.saved.here: here} | self.saved.sizes
        return [sizes.get(slot, 0) for slot in range(self.config.n_slots)]

    def save(self, slot: int, path: Path, owner: str = "") -> tuple[int, int]:
        """Write a text of `owner` to a file; its tokens, and bytes. Raises PromptError or OSError."""
        cache = self.caches[0].save() if self.caches and slot == self.saved.here else self.saved.at(slot)
        if cache is None or cache.state is None or cache.owner != owner:
            raise PromptError(f"slot {slot} holds nothing that can be saved")
        write_cache(path, cache, identity_of(self.config, self._contexts[0], owner))
        return len(cache.tokens), path.stat().st_size

    def restore(self, slot: int, path: Path, owner: str = "") -> tuple[int, int]:
        """Put the text of a file into a slot and the contexts, for prompts that begin as it does. As save()."""
        config, target = self.config.context(self.n_ctx, 1, 1, 0), self.caches[0]
        n_most = _MORE_BYTES + 2 * sum(self.target.size.cache_bytes(config))
        identity = identity_of(self.config, self._contexts[0], owner)
        cache = read_cache(path, identity, n_most, self.n_ctx, self.target.n_vocab)
        self.saved.change(self.caches, slot)
        self.erase(slot)
        target.load(replace(cache, owner=owner))
        if not target.tokens:
            raise PromptError(f"{path.name} is damaged: llama.cpp cannot restore it")
        return len(cache.tokens), path.stat().st_size

    def erase(self, slot: int) -> int:
        """Forget a text. Returns its tokens."""
        n = self.kept[slot]
        for cache in self.caches if slot == self.saved.here else []:
            cache.clear()
        self.saved.remove(slot)
        return n

    @property
    def caches(self) -> list[Cache]:
        """The target's, and those of local drafts."""
        of_drafts = [draft.cache for draft in (self.draft, self._head_draft) if draft is not None]
        return [*([self.target_cache] if self.target_cache is not None else []), *of_drafts]

    def attach(self, remote: ConnectedDrafts) -> None:
        """Use remote drafts from now on; makes contexts for texts of unknown length."""
        if self.remote is not remote:
            self.close()
            self.remote = remote
        self.reserve(0, -1)

    def abort(self) -> None:
        """End what is being computed: see computing(). From any thread."""
        with self._lock:
            self._abort()

    @contextmanager
    def computing(self, abort: Callable[[], None]) -> Iterator[None]:
        """Until the end of the `with` block, abort() calls `abort`, which may abort the contexts."""
        with self._lock:
            self._abort = abort
        try:
            yield
        finally:
            with self._lock:
                self._abort = lambda: None
            for context in self._contexts:
                context.resume()

    def _abort_contexts(self) -> None:
        for context in self._contexts:
            context.abort()

"""Scheduler: which text is written when, on a thread of its own."""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from duo.engine.cores import pin
from duo.engine.generation import Generation
from duo.engine.kv_store import SavedCache, belong
from duo.engine.model_pair import ModelPair
from duo.engine.new_text import new_text, proposers
from duo.engine.request import Request
from duo.engine.request_queue import Paused, RequestQueue, may_share
from duo.engine.together import Member, Together
from duo.errors import BusyError, DecodeError, DuoError, MemoryLimitError, ModelError, PromptError, UsageError
from duo.llama import lifeline
from duo.speculation.types import Step

log = logging.getLogger("duo.engine")

_LINGER_S = 0.05  # wait for the next job: consecutive requests share the thread, and the memory that it has freed


class Scheduler(RequestQueue):
    """Writes the texts of requests with the contexts of a model pair; clients take turns.

    A text alone is written by its Generation, with drafts. If others come that can be written together with it, it
    pauses, but stays in its cells, and the texts are written by Together until one is left, which goes on alone.

    All that it adds to the queue is for its thread, but running().
    """

    def __init__(self, slot: ModelPair) -> None:
        super().__init__(slot)
        self._together: Together | None = None  # once texts were written together
        self._left: Generation | None = None  # of the text in the contexts, which goes on
        self.n_decodes = self.n_busy = 0  # of the target; and the texts in progress at each, added up

    def running(self) -> list[Request]:
        """The requests whose texts are being written now."""
        return list(self._running)

    def _hand(self, request: Request, step: Step) -> None:
        """A step was made: hand it over."""
        request.put(step)
        request.n_turn += len(step.tokens)
        request.n_written += len(step.tokens)
        request.n_steps += 1
        request.n_texts += len(self._running)

    def _joins(self, request: Request) -> bool:
        """Whether another text can join this one, which is written alone."""
        return self._joining({request: self._slot.caches[0].context.n_past}) is not None

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

    def _take_turn(self, request: Request | None) -> None:
        """Write a text, and those that are written together with it, until all have ended or pause."""
        while request is not None:
            error: BaseException | None = None
            try:
                with lifeline.notifying(self.fail):
                    has_ended = request.cancelled.is_set() or self._write(request)
            except BaseException as raised:
                has_ended, error = True, raised
            together = self._together
            if has_ended:
                self._left = None
                self._finish(request, error)
                request = None
            elif together is not None and together.members:
                request = self._write_together(together)
            else:
                if request in self._requests:
                    self.add(request)  # its next turn
                request = None

    def _finish(self, request: Request, error: BaseException | None) -> None:
        """A text has ended, with an error, which is raised in the thread that iterates, or without one."""
        if error is None:
            self.fault = None
        elif not isinstance(error, DuoError):
            log.error("a generation failed", exc_info=error)
            self.fault = repr(error)
        elif not isinstance(error, BusyError | PromptError | UsageError):
            self.fault = str(error)
        self._end(request, error)

    def _write(self, request: Request) -> bool:
        """Write until the text ends or is cancelled: True. False: it pauses, or others join it. Raises DuoError."""
        slot = self._slot
        request.began = request.began or request.metrics.clock.now()
        with self._changed:
            self._running.append(request)
        try:
            pin(slot.threads.cores)
            is_loading = not slot.n_ctx  # the first contexts are part of loading
            seconds = self._make_contexts(request)
            request.metrics.started += seconds if is_loading else 0.0
            with slot.recorder.watching():
                return self._generate(request)
        finally:
            with self._changed:
                self._running.clear()

    def _make_contexts(self, request: Request) -> float:
        """Contexts for a text, and for those that wait and may be written together with it. See ModelPair.reserve()."""
        slot = self._slot
        with self._changed:
            waiting = [job for job in self._waiting.jobs if isinstance(job, Request) and may_share(job)]
        own, *others = [(len(one.prompt), one.config.stop.n_predict) for one in (request, *waiting)]
        sums = sorted(n_prompt + max(0, n_predict) for n_prompt, n_predict in others)
        may_grow = self._left is None and may_share(request) and own[1] >= 0
        known = [one for one in others if one[1] >= 0] if may_grow else []
        for length in sorted((one for one in known if sum(one) > sum(own)), key=sum, reverse=True):
            n_most = sum(sorted([sum(own), *map(sum, known)])[-slot.n_together :])
            with suppress(PromptError, MemoryLimitError):  # which are its own
                return slot.reserve(*length, request.cancelled, n_most - sum(length))
        n_beside = sum(sums[: slot.n_together - 1]) if self._left is None and may_share(request) else 0
        return slot.reserve(*own, request.cancelled, n_beside)

    def _generate(self, request: Request) -> bool:
        slot = self._slot
        generation, self._left = self._left, None
        if generation is None:
            generation = self._resume(request) if request in self._paused else self._begin(request)
        target, text = slot.caches[0], generation.text
        has_ended, request.n_turn, events = True, 0, request.metrics.events
        n_before = len(events)
        try:
            has_ended = self._compute(generation, request)
            return has_ended
        finally:
            n = sum(one.lane == "target" and one.name != "wait" for one in events[n_before:])
            self.n_decodes, self.n_busy = self.n_decodes + n, self.n_busy + n
            target.end(text.tokens, text.n_prompt)
            pauses = not has_ended and (self._lacks_room({request: 0}) or self._has_had_its_turn(request, {request: 0}))
            if not has_ended and (self._joins(request) or not pauses):
                self._together = together = self._together or Together(slot)
                together.begin()
                together.add(Member(request, generation, target, 0, slot.saved.here), partial(self._hand, request))
            elif not has_ended:
                self._pause(request, generation, [cache.save() for cache in slot.caches], slot.saved.here)
                target.is_copied = True

    def _pause(self, request: Request, generation: Generation, caches: list[SavedCache], slot: int) -> None:
        request.n_pauses += 1
        self._paused[request] = Paused(generation, caches, slot)
        self._slot.saved.reserved.add(slot)

    def _resume(self, request: Request) -> Generation:
        """Continue a text that has paused."""
        slot, paused = self._slot, self._paused.pop(request)
        self._reserve()
        slot.cores.begin()
        slot.saved.keep(slot.caches)
        for cache, saved in zip(slot.caches, paused.caches, strict=False):  # of one beside others: the target's
            cache.load(saved)
        belong(slot.caches, request.owner)
        slot.saved.take(paused.slot)
        paused.generation.target = slot.caches[0].context
        return self._renewed(paused.generation, request)

    def _renewed(self, generation: Generation, request: Request) -> Generation:
        """A text that goes on, with the drafts that there are now: a larger one may have got new contexts meanwhile."""
        if any(draft.cache not in self._slot.caches for draft in generation.sources.drafts):
            self._slot.memories.owner = request.owner
            generation.sources = proposers(self._slot, request)
            generation.controller = generation.sources.controller
        return generation

    def _reserve(self, members: Sequence[Member] = ()) -> None:
        """Keep the slots of texts that are written together, and of those that have paused, if there are enough."""
        saved, here = self._slot.saved, {member.slot for member in members}
        reserved = here | {paused.slot for paused in list(self._paused.values())}
        saved.reserved = reserved if len(reserved) < self._slot.config.n_slots or not members else here

    def _compute(self, generation: Generation, request: Request) -> bool:
        """Generation.run(). If llama.cpp fails, all is read again, once; then the next text gets new contexts."""
        slot, has_ended = self._slot, True
        failure: DuoError | None = None

        def pauses(_: int) -> bool:
            if not self._waiting:
                return False
            had = self._has_had_its_turn(request, {request: 0})
            return had or self._joins(request) or self._lacks_room({request: 0})

        for is_first in (True, False):
            try:
                with slot.computing(generation.interrupt):
                    has_ended = generation.run(partial(self._hand, request), request.cancelled, pauses)
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
        """Begin a text in the contexts."""
        slot = self._slot
        self._reserve()
        slot.cores.begin()
        slot.saved.begin(slot.caches, request.prompt, request.slot, request.owner)
        request.slot = slot.saved.here
        return new_text(slot, request, slot.caches[0])

    # Texts that are written together

    def _write_together(self, together: Together) -> Request | None:
        """Write the members, and those that join them, until one is left, which goes on alone; None: none."""
        slot, members, left = self._slot, together.members, None
        with self._changed:
            self._running += [member.request for member in members]
        try:
            with lifeline.notifying(self.fail), slot.recorder.watching(), slot.computing(together.interrupt):
                while members:
                    for member in together.ended():
                        together.end(member)
                        self._stop(member.request)
                        self._finish(member.request, member.error)
                    if members:  # the last one has left its conversation in the contexts
                        self._admit(together)
                    if len(members) < 2:
                        break
                    n = len(members) if together.step() else 0
                    self.n_decodes, self.n_busy = self.n_decodes + (n > 0), self.n_busy + n
                left = together.settle() if members else None
        except BaseException as raised:
            error: BaseException = raised
            if isinstance(raised, DecodeError | ModelError):
                error = ModelError(f"{slot.target.path.name}: no text can be written: {raised}")
            failed = [*members]
            together.clear()  # first: a draft may be decoding
            slot.reset()
            slot.is_usable = False
            for member in failed:
                self._finish(member.request, error)
            self.fail(error, list(self._paused))  # they cannot go on in new contexts
        finally:
            with self._changed:
                self._running.clear()
        self._left = left.generation if left is not None else None
        return left.request if left is not None else None

    def _stop(self, request: Request) -> None:
        """A text is not written any more, for now."""
        with self._changed:
            self._running.remove(request)

    def _admit(self, together: Together) -> None:
        """Let those who wait join. One that has had its turn pauses if others wait, or the last if there is no room."""
        members = together.members
        while True:
            request = self._joining(together.n_read, together.n_shared)
            if request is None:
                break
            with self._changed:
                if request not in self._waiting.jobs:  # it was cancelled
                    continue
                self._waiting.take(request)
                self._running.append(request)
            self._join(together, request)
        n_read = together.n_read
        if self._lacks_room(n_read, together.n_shared):
            for member in [*members]:
                self._pause_one(together, member)
        had = [one for one in members if self._has_had_its_turn(one.request, n_read, one.cache)]
        while (had or together.lacks_room) and len(members) > 1:
            member = members[-1] if together.lacks_room else max(had, key=lambda one: one.request.n_turn)
            self._pause_one(together, member)
            had = []

    def _pause_one(self, together: Together, member: Member) -> None:
        self._pause(member.request, member.generation, [together.pause(member)], member.slot)
        self._stop(member.request)
        self.add(member.request)

    def _join(self, together: Together, request: Request) -> None:
        """Write a text, too, that is new or has paused."""
        slot, paused = self._slot, self._paused.pop(request, None)
        request.began, request.n_turn = request.began or request.metrics.clock.now(), 0
        self._reserve(together.members)
        asked, cache, kept = request.slot if paused is None else paused.slot, None, slot.saved.texts
        try:
            if paused is None:
                n_kept = self._n_kept(request) if asked < 0 else math.inf
                prompt = request.prompt if request.reuses else ()
                cache, sequence = together.cache(prompt, request.owner, n_kept)
                request.slot = slot.saved.begin_beside(cache, request.prompt, asked, request.owner, together.n_free)
                generation = new_text(slot, request, cache)
            else:
                has_copy = paused.caches[0].state is not None
                cache, sequence = together.cache(() if has_copy else request.prompt, request.owner)
                generation = self._renewed(paused.generation, request)
                is_free = asked not in slot.saved.sizes and all(asked != member.slot for member in together.members)
                request.slot = slot.saved.begin_beside(cache, (), asked if is_free else -1)
                if has_copy:
                    cache.load(paused.caches[0])
            together.add(Member(request, generation, cache, sequence, request.slot), partial(self._hand, request))
        except BaseException as error:
            slot.saved.put_back(kept)
            if cache is not None:
                cache.clear()
            self._stop(request)
            self._finish(request, error)

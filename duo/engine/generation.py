"""Generation: the loop that writes a text: propose, plan, decode, verify, roll back, commit, learn."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from duo.config import ThreadConfig
from duo.engine.async_draft import AsyncDraft
from duo.engine.cores import CoresInUse, within
from duo.engine.decoder import Alternating, Decoder, score_size
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import ConnectedDrafts, Proposer, Result, RunningText
from duo.engine.statistics import CONTEXT_FULL, GRAMMAR_END, LIMIT, StepRecord
from duo.errors import DecodeAborted, GrammarError
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import ALONE, ASYNC, Mode, TargetAlone
from duo.speculation.sampling import logprobs
from duo.speculation.types import Candidate, Logits, Origin, Plan, Proposal, Step, StepCost, TokenLogprobs


class DecodeTime(NamedTuple):
    """What a decode of the target took."""

    seconds: float
    cpu_s: float  # processor time of this process meanwhile, per thread of the target


@dataclass(frozen=True, slots=True)
class Proposers:
    """What may propose candidates for a text, and the controller that decides. Nothing: the target writes alone."""

    controller: Controller | TargetAlone = field(default_factory=TargetAlone)
    drafts: Sequence[LocalDraft] = ()
    remote: ConnectedDrafts | None = None  # one of which proposes at a time
    others: Sequence[Proposer] = ()


@dataclass(eq=False)
class Generation:
    """Writes one text. Without candidates it is plain autoregressive decoding.

    Between two steps the target's cache holds all accepted tokens but the last, which is decoded with the next
    candidates. This includes the prompt: the first step decodes what is not in the cache yet.
    """

    target: Decoder  # its cache holds the first `n_past` tokens of the text
    text: RunningText
    threads: ThreadConfig
    sources: Proposers
    on_prompt: Callable[[int], None] = lambda _: None  # called before each batch of the prompt with the tokens so far
    n_logprobs: int | None = None  # see GenerationConfig
    cores: CoresInUse = field(default_factory=lambda: CoresInUse(follows=False))  # they limit the threads
    scored: list[TokenLogprobs] | None = None  # is added those of the prompt's tokens; None: they are not wanted

    def __post_init__(self) -> None:
        self.controller, self._recorder, self._ending = self.sources.controller, self.text.recorder, self.text.ending
        self._now = self._recorder.clock.now
        self._recorder.n_prompt = self.text.n_prompt
        self._paused_at: float | None = None
        self.proposers: list[Proposer] = []

    def run(
        self, put: Callable[[Step], None], stop: threading.Event, pauses: Callable[[int], bool] = lambda _: False
    ) -> bool:
        """Write until the ending or until `stop` is set; `put` gets every step. Raises DecodeError of the target.

        `pauses`: called before each batch of the prompt, and after each step, with the tokens that this call has added.
        If it returns True, the text pauses, and False is returned. When run() is called again, also after an error,
        what the target's cache does not have is read again.
        """
        self._go_on()
        self._put, self._stop, self._pauses = put, stop, pauses
        try:
            self.begin()
            self._prefill()
            self.write()
        except DecodeAborted:
            pass  # by interrupt()
        except GrammarError:
            self._ending.reason = GRAMMAR_END
        finally:
            self._paused_at = self._now()
            for proposer in self.proposers:
                proposer.end()
        if not self._is_paused:
            self._end()
        return not self._is_paused

    def _end(self) -> None:
        """The text has ended."""
        if rest := self._ending.finish():
            self._put(Step((), 0, (rest,)))
        if isinstance(self.controller, Controller):
            self.controller.target.ended(len(self.text.tokens) - self.text.n_prompt)

    def interrupt(self) -> None:
        """End run() after the current decode or during prefill. From any thread, after setting `stop`."""
        for proposer in self.proposers:
            proposer.interrupt()
        if not self._recorder.steps:
            self.target.abort()

    def write(self) -> None:
        """The loop."""
        while texts := self._running():
            plan = self.controller.plan(texts, [proposer.propose(texts) for proposer in self.proposers])
            if plan.wait_s is not None:  # worth waiting for one more candidate
                self.proposers[plan.proposer].wait(plan.wait_s, plan.candidates)
                continue
            logits, time = self._decode(texts, plan)
            results, cost = self._verify(logits, texts, plan, time)
            for proposer in self.proposers:
                proposer.commit(results)  # the drafts go on from here, before anything else is done
            self.controller.learn(results, cost)
            self._commit(logits, results, plan)
            self._follow_cores()

    # Beside other texts, with which steps are made: see duo/engine/together.py

    def enter(
        self, target: Decoder, lookup: Proposer | None, put: Callable[[Step], None], stop: threading.Event
    ) -> None:
        """Until run() is called, take() gets the steps, decoded in `target`; `lookup` proposes. Others: see run()."""
        self._go_on()
        self.target, self._put, self._stop, self._pauses = target, put, stop, lambda _: False
        self.proposers, self._mode, self._began, self._n_before = [lookup] if lookup else [], ALONE, 0.0, 0
        self._lookup = lookup
        for proposer in self.proposers:
            proposer.begin(self.text)

    def propose(self) -> Proposal:
        """What the lookup has for the next step."""
        return self._lookup.propose([self.text]) if self._lookup is not None else Proposal()

    def take(self, logits: Logits, candidates: Sequence[Candidate], mode: Mode, start: float, end: float) -> None:
        """A decode from `start` on had the last token and these candidates of the draft of a mode, or of the lookup.

        Raises what a constraint on the text raises.
        """
        plan = Plan(candidates, origin=Origin.LOOKUP if candidates and not mode.draft else Origin.DRAFT)
        self._mode = mode
        try:
            results, _ = self._verify(logits, [self.text], plan, DecodeTime(end - start, 0.0))
        except GrammarError:
            self._ending.reason = GRAMMAR_END
            return
        for proposer in self.proposers:
            proposer.commit(results)
        self._commit(logits, results, plan)

    def leave(self, *, pauses: bool = False) -> None:
        """The text has ended, or pauses."""
        self._paused_at = self._now() if pauses else None
        if not pauses:
            self._end()

    def _go_on(self) -> None:
        if isinstance(self.controller, Controller):
            self._recorder.controller = self.controller
        if self._paused_at is not None:
            self._recorder.paused_s += self._now() - self._paused_at
        self._paused_at = None

    # The parts of the loop

    def begin(self) -> None:
        """Begin, or continue after a pause."""
        self._n_threads = 0  # the target's threads; 0: still those for prefill
        self._is_new, self._began, self._mode = True, 0.0, ALONE  # of the step that is being made
        self._n_before, self._is_paused = len(self.text.tokens), False
        self._remote: AsyncDraft | None = None
        self._drafts = {draft.estimates.name: draft for draft in self.sources.drafts}
        self.proposers = [*self.sources.drafts, *self.sources.others]  # the lookup learns when the drafts go on
        if self.sources.remote is not None:
            self.sources.remote.begin()
            self._remote = self.sources.remote.choose()
            if self._remote is not None:
                self.proposers.insert(len(self.sources.drafts), self._remote)
        self._use_cores()
        self.controller.begin(self._estimates(), len(self.text.tokens), self._ending.n_room, self.text.mode)
        for proposer in reversed(self.proposers):  # what the first draft records of itself stays
            proposer.begin(self.text)

    def _estimates(self) -> list[DraftEstimates]:
        """What is known of the drafts."""
        drafts = [*self._drafts.values(), *([self._remote] if self._remote is not None else [])]
        return [draft.estimates for draft in drafts]

    def _running(self) -> list[RunningText]:
        """The texts of the next step: none once the text has ended, pauses, or is cancelled."""
        text = self.text
        if self._is_new:
            if self._is_paused or not self.goes_on():
                return []
            if self.sources.remote is not None and text.n_fresh == 1:
                self._follow_remote(self.sources.remote)
            self._is_new, self._began = False, self._now()
        return [text]

    def goes_on(self) -> bool:
        """Whether there is a next step; then also how many tokens it may add."""
        if self._ending.reason is not None or self._stop.is_set():
            return False
        target, text, n_text = self.target, self.text, self._ending.n_room
        text.n_fresh = n_fresh = len(text.tokens) - target.n_past
        n_context = target.n_ctx - target.n_past - n_fresh  # for the last token, too, which is not decoded
        if n_context <= 0 or n_text == 0:
            self._ending.reason = LIMIT if n_text == 0 else CONTEXT_FULL
            return False
        n_room = min(n_context, target.n_batch - n_fresh + 1, n_text or target.n_batch, text.n_most + 1)
        text.n_room = n_room if target.n_rollback is None else min(n_room, target.n_rollback + 1)
        if n_fresh > 1:  # the last batch of the prefill verifies nothing
            text.n_room = 1
        return True

    def _follow_remote(self, remote: ConnectedDrafts) -> None:
        """Use the remote draft that is to be used now, with all tokens so far."""
        draft, before = remote.choose(), self._remote
        if draft is before:
            return
        self._remote = draft
        if before is not None:
            self.proposers.remove(before)
            before.end()
        self.controller.use([each for each in self._estimates() if not each.has_ended], len(self.text.tokens))
        if draft is not None:
            self.proposers.insert(len(self.sources.drafts), draft)
            draft.begin(self.text)

    def _decode(self, texts: Sequence[RunningText], plan: Plan) -> tuple[Logits, DecodeTime]:
        """Logits `[n, n_vocab]` after the last token and each candidate, and what the decode took."""
        text, n = texts[0], len(plan.candidates)
        self._mode = mode = self.controller.mode if text.n_fresh == 1 else ALONE
        if text.n_fresh == 1:
            if plan.proposer >= 0:
                self.proposers[plan.proposer].verifies(n)
            draft = self._drafts.get(mode.draft)
            n_threads = draft.n_target_threads if draft is not None else self._usable.target
            if n_threads != self._n_threads:
                self.target.set_threads(n_threads, n_threads)
                self._n_threads = n_threads
            if mode.schedule is ASYNC:  # in schedule sync it is the draft's time
                self._recorder.waited(self._began, self._now())
        tokens = text.tokens[self.target.n_past :]
        return self._timed([*tokens, *[candidate.token for candidate in plan.candidates]], n + 1, plan.alternatives)

    def _timed(
        self, tokens: Sequence[int], n_rows: int, alternatives: Sequence[tuple[int, int]] = ()
    ) -> tuple[Logits, DecodeTime]:
        """Logits `[n_rows, n_vocab]` after the last of these tokens, and what this took. See Alternating."""
        computed, start = self._recorder.clock.computed, self._now()
        before_s = computed()
        if alternatives:
            logits = cast("Alternating", self.target).decode_with(tokens, alternatives)
        else:
            logits = self.target.decode(tokens, n_rows)
        end, cpu_s = self._now(), computed() - before_s
        self._recorder.decoded(start, end, len(tokens))
        return logits, DecodeTime(end - start, cpu_s / (self._n_threads or self._usable.target))

    def _verify(
        self, logits: Logits, texts: Sequence[RunningText], plan: Plan, time: DecodeTime
    ) -> tuple[list[Result], StepCost | None]:
        """Verify the candidates and roll back the rejected ones: what is added to each text, and what it has cost."""
        text, verifier, n = texts[0], texts[0].verifier, len(plan.candidates)
        start, position = self._now(), self.target.n_past - n
        recent = text.tokens[max(0, position - verifier.n_recent) :] if verifier.n_recent else ()
        added, came_true = verifier.verify_with(logits, plan.candidates, plan.alternatives, position, recent)
        if plan.alternatives:
            n_past = position + len(added) - 1 - (came_true >= 0)
            cast("Alternating", self.target).settle(n_past, came_true)
            self._recorder.alternatives.update(verified=len(plan.alternatives), accepted=int(came_true >= 0))
        else:
            self.target.rollback(position + len(added) - 1)
        self._recorder.detail("target", "verify", start, n)
        judged, pieces = self._now(), self._ending.push(added)
        # The cost of a step with prefill says nothing about later steps, nor one in which a device may have compiled.
        is_usual = text.n_fresh == 1 and not self.target.was_first
        draft = self._mode.draft if plan.origin is Origin.DRAFT else ""
        result = Result(
            added[: len(pieces)], pieces, len(added) - 1, n, plan.origin, draft, is_usual, judged, came_true >= 0
        )
        if not is_usual:
            return [result], None
        n += len(plan.alternatives)
        return [result], StepCost(n, time.seconds, self._now() - self._began, plan.origin, time.cpu_s)

    def _commit(self, logits: Logits, results: Sequence[Result], plan: Plan) -> None:
        """Add what was verified to the text and hand it over. The drafts go on meanwhile."""
        result, text = results[0], self.text
        text.tokens += result.tokens
        proposed, origin = tuple([candidate.token for candidate in plan.candidates]), plan.origin
        n_accepted = min(result.n_right, len(result.tokens))
        if origin is Origin.ANY:  # nobody has proposed these
            proposed, n_accepted, origin = (), 0, Origin.DRAFT
        record = (len(proposed), n_accepted, len(result.tokens), self._mode.schedule, origin)
        self._recorder.steps.append(StepRecord(result.judged, self._now(), *record))
        # The rows are valid until the next decode.
        found = logprobs(logits, result.tokens, self.n_logprobs) if self.n_logprobs is not None else ()
        rejected = proposed[result.n_right - result.has_alternative :]
        self._put(Step(result.tokens, n_accepted, result.pieces, rejected, origin, found))
        self._is_new = True
        if self._ending.reason is None:
            self._is_paused = self._pauses(len(text.tokens) - self._n_before)

    def _prefill(self) -> None:
        """Decode the prompt except for its last batch, which is part of the first step; if scored, its last token.

        If no token is wanted, there is no step, and all of an unscored prompt is decoded.
        """
        target, prompt, scored = self.target, self.text.tokens, self.scored
        if scored is not None and len(scored) < self.text.n_prompt - 1:
            del scored[target.n_past :]  # of what an error has made to be read again
        elif scored is not None:  # all of them are known
            if self._ending.n_room == 0:
                return
            scored = None
        while not self._stop.is_set():
            if self._pauses(0):
                self._is_paused = True
                return
            n_past, n_left = target.n_past, len(prompt) - target.n_past
            self.on_prompt(n_past)
            n = min(target.n_batch, n_left)
            if scored is not None:
                n = min(score_size(target), n_left - 1)
            elif n == n_left and self._ending.n_room != 0:
                return
            if not n:
                return
            logits, _ = self._timed(prompt[n_past : n_past + n], 0 if scored is None else n)
            if scored is not None:
                scored += logprobs(logits, prompt[n_past + 1 :], self.n_logprobs or 0)
            self._follow_cores()

    def _follow_cores(self) -> None:
        """After a batch: from the next one on, use as many threads as there are free cores."""
        if self.cores.decoded():
            self._use_cores()

    def _use_cores(self) -> None:
        """Let the drafts, and the prefill, use as many threads as there are free cores. They determine the times."""
        self._usable = within(self.threads, self.cores.limit)
        for draft in self._drafts.values():
            draft.threads = self._usable
        self.controller.use_cores(self.cores.limit)
        if not self._n_threads:
            self.target.set_threads(self._usable.target, self._usable.target_batch)

"""Generation: the target's loop for one text: candidates, decode, verify, roll back, commit."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from duo.config import DraftConfig, ThreadConfig
from duo.engine.cores import CoresInUse, within
from duo.engine.decoder import Decoder, score_size
from duo.engine.proposers import Draft, DraftRequest, Proposer
from duo.engine.statistics import CONTEXT_FULL, GRAMMAR_END, LIMIT, StepRecord
from duo.errors import DecodeAborted, GrammarError
from duo.llama.context import Context
from duo.llama.model import Model
from duo.speculation.constants import DEFAULT
from duo.speculation.policy import StepCost
from duo.speculation.sampling import logprobs
from duo.speculation.schedule import Schedule
from duo.speculation.types import Candidate, Logits, Origin, Step, TokenLogprobs
from duo.speculation.verify import Verifier


class ConnectedDrafts(Protocol):
    """Remote drafts, which connect and disconnect. Called on the target's thread."""

    drafting: DraftConfig  # its limits, set before ready()

    def ready(self, target: Model, context: Context, stop: threading.Event | None) -> None:
        """Announce the target. Waits a while for a draft that is starting, until `stop` is set."""

    def begin(self) -> None:
        """A generation begins."""

    def choose(self, *, has_other: bool) -> Draft | None:
        """The draft to use now, if any. `has_other`: there is one that stays."""


@dataclass(frozen=True, slots=True)
class Proposers:
    """What may propose candidates for a text. One draft is in use at a time, and all others."""

    draft: Draft | None = None
    preferred: ConnectedDrafts | None = None
    others: Sequence[Proposer] = ()
    alone: Draft = field(default_factory=Draft)  # the target without a draft
    layer: Draft | None = None  # the MTP layer of the target, beside the draft

    def choose(self, now: Draft, request: DraftRequest) -> Draft:
        """The draft to use for this text, after `now`."""
        found = self.preferred.choose(has_other=self.draft is not None) if self.preferred is not None else None
        local = self.draft or self.layer
        if self.draft is not None and self.layer is not None:
            local = _faster(now, self.draft, self.layer, request)
        return found or local or self.alone


def _faster(now: Draft, draft: Draft, layer: Draft, request: DraftRequest) -> Draft:
    """Of two local drafts, the one with the higher forecast over the target alone; first one that is not known yet."""
    gains = {each: each.policy.gain if each.policy is not None else 0.0 for each in (draft, layer)}
    if now not in gains or now.policy is None:
        return max(gains, key=lambda each: math.inf if gains[each] is None else gains[each] or 0.0)
    other = layer if now is draft else draft
    here, there, least = gains[now], gains[other], DEFAULT.horizon // 4  # tokens that a draft is used for, once begun
    n_room = DEFAULT.horizon if request.ending.n_room is None else request.ending.n_room
    if here is None or other.policy is None or now.policy.chooser.n_tokens < least or n_room < least:
        return now
    if there is None:
        return other
    # What the other one has to read first must pay.
    saved_s = n_room * now.policy.alone.target_s(1) * (1 / max(here, 1.0) - 1 / max(there, 1.0))
    pays = saved_s > len(request.sequence.accepted) * other.policy.read_s
    return other if pays and there > here * (1 + DEFAULT.least_gain) else now


@dataclass(eq=False)
class Generation:
    """Generates one text and owns its session. Without candidates it is plain autoregressive decoding.

    Between two steps the target's cache holds all accepted tokens but the last, which is decoded with the next
    candidates. This includes the prompt: the first step decodes what is not in the cache yet.
    """

    target: Decoder  # its cache holds the first `n_past` tokens of the session
    request: DraftRequest
    verifier: Verifier
    threads: ThreadConfig
    sources: Proposers
    on_prompt: Callable[[int], None] = lambda _: None  # called after each batch of the prefill with the tokens so far
    n_logprobs: int | None = None  # see GenerationConfig
    cores: CoresInUse = field(default_factory=lambda: CoresInUse(follows=False))  # they limit the threads
    scored: list[TokenLogprobs] | None = None  # is added those of the prompt's tokens; None: they are not wanted

    def __post_init__(self) -> None:
        request = self.request
        self.sequence, self._ending, self._metrics = request.sequence, request.ending, request.metrics
        self._now = request.metrics.clock.now
        self._paused_at = 0.0
        self._begin()
        self._metrics.n_prompt = self.sequence.n_prompt

    def _begin(self) -> None:
        """Begin, or continue after a pause, with the target alone."""
        self._n_threads = 0  # the target's threads; 0: still those for prefill
        self.draft = self.sources.alone  # the one in use
        self._metrics.policy = self.draft.policy or self._metrics.policy
        self._use_cores(self.draft)
        for source in (self.draft, *self.sources.others):
            source.begin(self.request)
        self._is_begun = True

    def run(
        self, put: Callable[[Step], None], stop: threading.Event, pauses: Callable[[int], bool] = lambda _: False
    ) -> bool:
        """Generate until the ending or until `stop` is set; `put` gets every step. Raises DecodeError of the target.

        `pauses`: called after each step with the tokens that this call has added. If it returns True, the text pauses,
        and False is returned. When run() is called again, also after an error, what the target's cache does not have is
        read again.
        """
        ending, n_before = self._ending, len(self.sequence.accepted)
        if not self._is_begun:
            self._metrics.paused_s += self._now() - self._paused_at
            self._begin()
        self._is_begun = False
        try:
            if self.sources.preferred is not None:
                self.sources.preferred.begin()
            self._use(self.sources.choose(self.draft, self.request))
            self._prefill(stop)
            while ending.reason is None and not stop.is_set():
                if (step := self._step()) is not None:
                    put(step)
                    if ending.reason is None and pauses(len(self.sequence.accepted) - n_before):
                        return False
        except DecodeAborted:
            pass  # by interrupt()
        except GrammarError:
            ending.reason = GRAMMAR_END
        finally:
            self._paused_at = self._now()
            for source in (self.draft, *self.sources.others):
                source.end()
        if rest := ending.finish():
            put(Step((), 0, (rest,)))
        return True

    def interrupt(self) -> None:
        """End run() after the current decode or during prefill. From any thread, after setting `stop`."""
        self.draft.interrupt()
        if not self._metrics.steps:
            self.target.abort()

    def _step(self) -> Step | None:
        """One decode and its verification; None if there is no room for another."""
        tokens = self.sequence.accepted[self.target.n_past :]
        n_room = self._room(len(tokens))
        if n_room <= 0:
            return None
        began = self._now()
        idle = (), Origin.DRAFT, Schedule.OFF  # the last batch of the prefill uses all threads and verifies nothing
        candidates, source, schedule = self._candidates(n_room) if len(tokens) == 1 else idle
        proposed = tuple([candidate.token for candidate in candidates])
        logits, decode_s = self._decode([*tokens, *proposed], len(candidates) + 1)
        added, judged = self._verify(logits, candidates), self._now()
        pieces = self._ending.push(added)
        written = added[: len(pieces)]
        # The cost of a step with prefill says nothing about later steps, nor one in which a device may have compiled.
        is_usual = len(tokens) == 1 and not self.target.was_first
        cost = StepCost(len(candidates), decode_s, self._now() - began, source) if is_usual else None
        self.draft.commit(written, cost)
        self._follow_cores()
        for other in self.sources.others:
            other.commit(written, cost)
        n_accepted = min(len(added) - 1, len(written))
        if source is Origin.ANY:  # nobody has proposed these
            proposed, n_accepted, source = (), 0, Origin.DRAFT
        record = StepRecord(judged, self._now(), len(proposed), n_accepted, len(written), schedule, source)
        self._metrics.steps.append(record)
        # After the commit, so that the draft continues meanwhile. The rows are valid until the next decode.
        found = logprobs(logits, written, self.n_logprobs) if self.n_logprobs is not None else ()
        return Step(written, n_accepted, pieces, proposed[len(added) - 1 :], source, found)

    def _room(self, n_fresh: int) -> int:
        """Maximum tokens that the next step may add, after decoding `n_fresh` that are not in the cache."""
        target, n_text = self.target, self._ending.n_room
        n_context = target.n_ctx - target.n_past - n_fresh  # for the last token, too, which is not decoded
        if n_context <= 0 or n_text == 0:
            self._ending.reason = LIMIT if n_text == 0 else CONTEXT_FULL
            return 0
        n_room = min(n_context, target.n_batch - n_fresh + 1, n_text or target.n_batch)
        return n_room if target.n_rollback is None else min(n_room, target.n_rollback + 1)

    def _candidates(self, n_room: int) -> tuple[Sequence[Candidate], Origin, Schedule]:
        """The candidates to verify now, where they come from, and the schedule."""
        self._use(self.sources.choose(self.draft, self.request))
        start = self._now()
        (candidates, source), schedule = self._compare(n_room), self.draft.schedule
        if (n := self.draft.n_target_threads) != self._n_threads:
            self.target.set_threads(n, n)
            self._n_threads = n
        if schedule is Schedule.ASYNC:  # in schedule sync it is the draft's time
            self._metrics.waited(start, self._now())
        return candidates, source, schedule

    def _compare(self, n_room: int) -> tuple[Sequence[Candidate], Origin]:
        """Compare what the sources propose, after waiting for more candidates if the policy says so."""
        draft, policy = self.draft, self.draft.policy
        if policy is None:
            return (), Origin.DRAFT
        found = [(source, source.propose()) for source in self.sources.others]
        while True:
            drafted = draft.propose()
            decision = policy.decide(n_room, drafted, *(proposal for _, proposal in found))
            if decision.wait_s is None:
                break
            draft.more(decision.wait_s)
        for source, proposal in ((draft, drafted), *found):
            if proposal.origin is decision.origin:
                source.verifies(decision.n_verify)
                return proposal.candidates[: decision.n_verify], proposal.origin
        return decision.n_verify * (Candidate(self.sequence.accepted[-1], 0.0),), Origin.ANY

    def _decode(self, tokens: Sequence[int], n_rows: int) -> tuple[Logits, float]:
        """Logits `[n_rows, n_vocab]` after the last of these tokens, and the seconds this took."""
        start = self._now()
        logits = self.target.decode(tokens, n_rows)
        end = self._now()
        self._metrics.decoded(start, end, len(tokens))
        return logits, end - start

    def _verify(self, logits: Logits, candidates: Sequence[Candidate]) -> tuple[int, ...]:
        """Verify the candidates and roll back the rejected ones. Returns what the step adds: see Verifier.verify()."""
        start, n_recent = self._now(), self.verifier.n_recent
        position = self.target.n_past - len(candidates)
        recent = self.sequence.accepted[max(0, position - n_recent) :] if n_recent else ()
        added = self.verifier.verify(logits, candidates, position, recent)
        self.target.rollback(position + len(added) - 1)
        self._metrics.detail("target", "verify", start, len(candidates))
        return added

    def _prefill(self, stop: threading.Event) -> None:
        """Decode the prompt except for its last batch, which is part of the first step; if scored, its last token.

        If no token is wanted, there is no step, and all of an unscored prompt is decoded.
        """
        target, prompt, scored = self.target, self.sequence.accepted, self.scored
        if scored is not None and len(scored) < self.sequence.n_prompt - 1:
            del scored[target.n_past :]  # of what an error has made to be read again
        elif scored is not None:  # all of them are known
            if self._ending.n_room == 0:
                return
            scored = None
        while not stop.is_set():
            n_past, n_left = target.n_past, len(prompt) - target.n_past
            n = min(target.n_batch, n_left)
            if scored is not None:
                n = min(score_size(target), n_left - 1)
            elif n == n_left and self._ending.n_room != 0:
                return
            if not n:
                return
            logits, _ = self._decode(prompt[n_past : n_past + n], 0 if scored is None else n)
            if scored is not None:
                scored += logprobs(logits, prompt[n_past + 1 :], self.n_logprobs or 0)
            self._follow_cores()
            self.on_prompt(target.n_past)

    def _follow_cores(self) -> None:
        """After a batch: from the next one on, use as many threads as there are free cores."""
        if self.cores.decoded():
            self._use_cores(self.draft)

    def _use_cores(self, draft: Draft) -> None:
        """Let `draft`, and the prefill, use as many threads as there are free cores. Times depend on their number."""
        threads = draft.threads = within(self.threads, self.cores.limit)
        if draft.policy is not None:
            draft.policy.use_cores(self.cores.limit)
        if not self._n_threads:
            self.target.set_threads(threads.target, threads.target_batch)

    def _use(self, draft: Draft) -> None:
        """Use this draft from here on, with all tokens accepted so far."""
        if draft is not self.draft:
            self.draft.end()
            self.draft = draft
            self._metrics.policy = draft.policy or self._metrics.policy
            self._use_cores(draft)
            draft.begin(self.request)

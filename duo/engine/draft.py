"""Draft: the interface through which the target's loop obtains candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from duo.config import SamplingConfig
from duo.engine.drafter import Offer
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.text import Ending
from duo.spec.lookup import Lookup
from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.sampling import Guesser
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Candidates, Guess, Source, common_prefix


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """The text that a draft is to draft for."""

    session: Session
    ending: Ending
    metrics: Metrics
    n_vocab: int  # the target's
    guesser: Guesser  # the sampler of a local draft
    sampling: SamplingConfig  # from which a remote draft makes its own
    banned: Sequence[int] = ()  # tokens that must not be chosen
    mode: str = ""  # of sampling: see Policy.begin()
    lookup: Lookup | None = None  # of this text; None: not to be used


class Draft:
    """Base of all drafts; by itself no draft model, only candidates from the text itself.

    The target's thread calls it, except interrupt(). A text may use several drafts, one at a time, and return to an
    earlier one: each begin() starts from all tokens accepted so far.
    """

    def __init__(self, n_target_threads: int = 1, policy: Policy | None = None) -> None:
        """`n_target_threads`: of a target that shares no cores with a draft."""
        self._n_target_threads = n_target_threads
        self.policy = policy  # None: no candidates
        self._session = Session((), 0)
        self._lookup: Lookup | None = None

    @property
    def schedule(self) -> Schedule:
        """The current schedule."""
        return self.policy.schedule if self.policy is not None else Schedule.OFF

    @property
    def n_target_threads(self) -> int:
        """Threads of the target in the current schedule."""
        return self._n_target_threads

    def begin(self, request: DraftRequest) -> None:
        """Start drafting for a text."""
        self._session, self._lookup = request.session, request.lookup
        if self.policy is not None:
            self.policy.begin(len(self._session.accepted), request.ending.n_room, request.mode)

    def candidates(self, n_room: int) -> Candidates:
        """The candidates to verify now, after waiting for more if the policy says so.

        The step may add at most `n_room` tokens. By default, there are only those of the lookup.
        """
        if self.policy is None:
            return Candidates()
        return self._chosen(self.policy.decide((), n_room, math.inf, self._lookup))

    def _chosen(self, decision: Decision) -> Candidates:
        if decision.source is Source.LOOKUP and self._lookup is not None:
            return self._lookup.candidates(decision.n_verify)
        if decision.source is Source.ANY:
            return Candidates(decision.n_verify * (Guess(self._session.accepted[-1], 0.0),), Source.ANY)
        return self._session.candidates(decision.n_verify)

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """Add the target's tokens to the session, and learn from their cost; None for a step with prefill."""
        self._session.commit(tokens)
        if cost is not None and self.policy is not None:
            self.policy.learn_step(len(tokens), cost)

    def end(self) -> None:
        """Stop drafting. A second call does nothing."""

    def interrupt(self) -> None:
        """Abort the draft's current decode, because the text ends."""


class QueuedDraft(Draft):
    """Base of drafts that have a policy and deliver candidates through a queue."""

    policy: Policy

    _longest_wait_s = math.inf  # limit of the wait for candidates in one step

    def __init__(self, policy: Policy, n_target_threads: int = 1) -> None:
        super().__init__(n_target_threads, policy)
        self._queue = CandidateQueue(policy.n_ahead)
        self._metrics = Metrics()
        self._now = self._metrics.clock.now

    def begin(self, request: DraftRequest) -> None:
        """See Draft. The queue is replaced, so that nothing from an earlier text arrives."""
        super().begin(request)
        self._metrics, clock = request.metrics, request.metrics.clock
        self._now = clock.now
        self._session.drop()
        self._queue = CandidateQueue(self.policy.n_ahead, request.metrics.pending, clock)
        self._tell(self._session.accepted)

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """See Draft."""
        self._learn_offers()
        n_verified = cost.n_candidates if cost is not None and cost.source is Source.DRAFT else 0
        self.policy.learn_scores(self._session.commit(tokens, n_verified))
        self._tell(tokens)  # before learn_step(), which may take a while
        self._learn_contradictions(counts=cost is not None and cost.source is Source.DRAFT)
        if cost is not None:
            lookahead = self.policy.lookahead()
            self.policy.learn_step(len(tokens), cost)
            if self.policy.lookahead() != lookahead:
                self._tell(())

    def _take(self, n_room: int) -> Candidates:
        """The candidates to verify now. After a wait without result there is no further wait in this step."""
        end = self._now() + self._longest_wait_s
        self._collect()
        next_s = self._next_s()
        while True:
            decision = self._decide(n_room, next_s)
            if decision.wait_s is None:
                return self._chosen(decision)
            came = self._wait_for_candidate(min(end, self._now() + decision.wait_s))
            next_s = self._next_s() if came else math.inf

    def _decide(self, n_room: int, next_s: float) -> Decision:
        """See Policy.decide()."""
        lookup, pending = self._lookup, self._session.candidates(self._session.n_pending).tokens
        n_agreed = common_prefix(pending, lookup.candidates(len(pending)).tokens) if lookup is not None else None
        return self.policy.decide(self._session.confidences(), n_room, next_s, lookup, n_agreed)

    def _wait_for_candidate(self, end: float) -> bool:
        """Wait for one more candidate until `end` or the draft ends. False if none came."""
        n_pending = self._session.n_pending
        while self._session.n_pending <= n_pending:
            if not self._queue.wait(end - self._now()):
                return False
            self._collect()
        return True

    def _collect(self) -> None:
        """Pass what the draft has offered to the session."""
        if self._learn_offers():
            self._tell(())

    def _learn_offers(self) -> bool:
        offers = self._queue.collect()
        for offer in offers:
            self._learn_offer(offer)
        return bool(offers)

    def _learn_offer(self, offer: Offer) -> bool:
        """Learn the cost of a drafted token and offer it to the session. False if it was dropped."""
        if offer.n_tokens or offer.outcome is None:
            self.policy.learn_draft(offer.n_tokens, offer.seconds, offer.n_sequences)
        return self._pass_on(offer)

    def _pass_on(self, offer: Offer) -> bool:
        """Offer a drafted token to the session. False if it was dropped."""
        epoch, position, guess, *_ = offer
        if offer.outcome is not None:
            return self._session.prepare(epoch, offer.outcome, position, guess)
        return self._session.offer(epoch, position, guess, offer.n_known)

    def _learn_contradictions(self, *, counts: bool) -> None:
        """Learn the ranks of the target's tokens. `counts`: the draft could prepare for this verification."""
        if found := self._session.contradictions:
            self.policy.learn_ranks(contradiction.rank for contradiction in found)
            if counts and self.policy.lookahead().n_branches:
                for contradiction in found:
                    self._metrics.resolved(contradiction.position, contradiction.prepared)

    def _chosen(self, decision: Decision) -> Candidates:
        if decision.source is Source.DRAFT:
            self._queue.verifies(len(self._session.accepted) + decision.n_verify)
        return super()._chosen(decision)

    def _tell(self, tokens: Sequence[int]) -> bool:
        """Tell the draft what was accepted. Returns whether its current token is now stale."""
        session = self._session
        lookahead = self.policy.lookahead()
        return self._queue.tell(session.epoch, tokens, lookahead, session.confidences(), session.came_true)

    def _next_s(self) -> float:
        """Seconds until the next candidate is expected; infinity: never."""
        draft_s, latency_s = self.policy.costs.draft_s, self.policy.latency_s
        if not draft_s or not self._queue.may_draft:
            return math.inf
        if (current := self._queue.current) is None:
            return latency_s + draft_s
        decode_s = self.policy.costs.draft_time(0.0, current.n_sequences)
        left_s = current.since + decode_s - self._now()
        if left_s < -(latency_s + decode_s):  # stalled
            return math.inf
        return self._expected_s(left_s, stale=current.is_stale)

    def _expected_s(self, left_s: float, *, stale: bool) -> float:
        """Seconds until the next candidate of a draft whose current token takes `left_s` more and may be `stale`."""
        draft_s = self.policy.costs.draft_s
        return max(left_s, 0.1 * draft_s) + (draft_s if stale else 0.0)

"""Sources: whatever proposes candidates. A draft is one that has a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from duo.config import SamplingConfig, ThreadConfig
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue, Drafted, State
from duo.engine.text import Ending
from duo.spec.calibration import Lookahead
from duo.spec.lookup import Lookup
from duo.spec.policy import Policy, StepCost
from duo.spec.sampling import Guesser
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Origin, Proposal


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """The text that sources propose candidates for."""

    session: Session
    ending: Ending
    metrics: Metrics
    guesser: Guesser  # the sampler of a local draft
    sampling: SamplingConfig  # from which a remote draft makes its own
    banned: Sequence[int] = ()  # tokens that must not be chosen
    mode: str = ""  # of sampling: see Policy.begin()


class Source:
    """Proposes what the target may write next; this one nothing. The target's thread calls it.

    At each step, one policy compares what all sources propose by value, and the target verifies the candidates of one.
    A text may use several drafts, one at a time, and return to an earlier one: each begin() starts from all tokens
    accepted so far.
    """

    def begin(self, request: DraftRequest) -> None:
        """Start proposing for a text."""

    def propose(self) -> Proposal:
        """What there is for the next batch. Never blocks, except for a draft in turns that is scored on the text."""
        return Proposal()

    def verifies(self, n: int) -> None:
        """The target verifies the first `n` of these now."""

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """The target has added `tokens` to the text at this cost; None for a step with prefill.

        Called before the target's next decode, so what this one has left in its context, such as hidden rows of the
        accepted positions, can still be read.
        """

    def end(self) -> None:
        """Stop. A second call does nothing."""


class TextSource(Source):
    """The text itself: what followed earlier occurrences of its last tokens."""

    def __init__(self, lookup: Lookup, n_most: int) -> None:
        """Proposes at most `n_most` candidates."""
        self._lookup = lookup
        self._n_most = n_most

    def begin(self, request: DraftRequest) -> None:
        """See Source."""
        self._lookup.begin(request.session.accepted)

    def propose(self) -> Proposal:
        """See Source."""
        return self._lookup.propose(self._n_most)

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:  # noqa: ARG002
        """See Source."""
        self._lookup.extend(tokens)


class Draft(Source):
    """A source with a policy; by itself the target alone. The target's thread calls it, except interrupt()."""

    threads: ThreadConfig  # that may be used now: set before begin(), and whenever the number of free cores changes

    def __init__(self, policy: Policy | None = None) -> None:
        """Without a policy, nothing is verified."""
        self.policy = policy
        self._session = Session((), 0)

    @property
    def schedule(self) -> Schedule:
        """The current schedule."""
        return self.policy.schedule if self.policy is not None else Schedule.OFF

    @property
    def n_target_threads(self) -> int:
        """Threads of the target in the current schedule."""
        return self.threads.target

    def begin(self, request: DraftRequest) -> None:
        """See Source."""
        self._session = request.session
        if self.policy is not None:
            self.policy.begin(len(self._session.accepted), request.ending.n_room, request.mode)

    def more(self, seconds: float) -> None:
        """Wait up to `seconds` for one more candidate, or make it. If none came, the next proposal expects none."""

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """See Source. The tokens are added to the session."""
        self._session.commit(tokens)
        if cost is not None and self.policy is not None:
            self.policy.learn_step(len(tokens), cost)

    def interrupt(self) -> None:
        """Abort the current decode, because the text ends. From any thread."""


class QueuedDraft(Draft):
    """Base of drafts that deliver candidates through a queue."""

    policy: Policy

    _queue_type = CandidateQueue
    _longest_wait_s = math.inf  # limit of the wait for candidates in one step

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._n_proposed = 0
        self._in_vain = False  # whether a wait in this step brought nothing
        self._wait_ends: float | None = None  # in this step
        self._connect(Metrics())

    def begin(self, request: DraftRequest) -> None:
        """See Source. The queue is replaced, so that nothing from an earlier text arrives."""
        super().begin(request)
        self._session.drop()
        self._connect(request.metrics)
        self._begin_step()

    def _connect(self, metrics: Metrics) -> None:
        self._metrics, self._now = metrics, metrics.clock.now
        self._queue = self._queue_type(self._session, self._metrics)
        self._lookahead = Lookahead()  # as the queue knows it

    def _begin_step(self) -> None:
        self._in_vain, self._wait_ends = False, None
        if (lookahead := self.policy.lookahead()) != self._lookahead:
            self._lookahead = lookahead
            self._queue.allow(lookahead)

    def propose(self) -> Proposal:
        """See Source."""
        if self.policy.schedule is Schedule.OFF:
            return Proposal()
        state = self._look()
        return Proposal(state.guesses, math.inf if self._in_vain else self._next_s(state))

    def more(self, seconds: float) -> None:
        """See Draft."""
        now = self._now()
        if self._wait_ends is None:
            self._wait_ends = now + self._longest_wait_s
        self._in_vain = not self._queue.wait(self._n_proposed, min(seconds, self._wait_ends - now))

    def verifies(self, n: int) -> None:
        """See Source."""
        self._queue.verifies(n)

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """See Source."""
        self._look()
        own = cost if cost is not None and cost.source is Origin.DRAFT else None
        scores, is_useless = self._queue.commit(tokens, own.n_candidates if own is not None else 0)
        if is_useless:
            self._cancel()
        # From here on the draft continues: to learn may take a while.
        self.policy.learn_scores(scores)
        for position, rank, prepared in self._session.contradictions:
            self.policy.calibration.add_rank(rank)
            if own is not None and self._lookahead.n_branches:  # the draft could prepare for this verification
                self._metrics.resolved(position, prepared)
        if cost is not None:
            self.policy.learn_step(len(tokens), cost)
        self._begin_step()

    def _look(self) -> State:
        state = self._queue.look()
        for drafted in state.drafted:
            self._learn_drafted(drafted)
        self._n_proposed = len(state.guesses)
        return state

    def _learn_drafted(self, drafted: Drafted) -> None:
        self.policy.learn_draft(drafted.n_tokens, drafted.seconds, drafted.n_sequences)

    def _cancel(self) -> None:
        """Abort the draft's current decode, which is of no use."""

    def _next_s(self, state: State) -> float:
        """Seconds until the next candidate is expected; infinity: never."""
        costs, latency_s, decode = self.policy.costs, self.policy.latency_s, state.decode
        if not costs.draft_s or not state.may_draft:
            return math.inf
        if decode is None:
            return latency_s + costs.draft_s
        decode_s = costs.draft_time(0.0, decode.n_sequences)
        left_s = decode.since + decode_s - self._now()
        if left_s < -(latency_s + decode_s):  # stalled
            return math.inf
        if state.is_stale and latency_s:  # a remote draft aborts that decode as soon as it is told
            return latency_s + costs.draft_s
        return max(left_s, 0.1 * costs.draft_s) + (costs.draft_s if state.is_stale else 0.0)

"""A draft that runs beside the target: CandidateQueue, which both threads share, and AsyncDraft, which proposes."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from duo.engine.drafter import DraftUpdate
from duo.engine.proposers import Proposer, Result, RunningText
from duo.engine.recorder import Recorder
from duo.speculation.acceptance import Lookahead
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Candidate, Outcome, Proposal


class Decode(NamedTuple):
    """A decode of the draft in progress."""

    since: float  # the clock's time at its start, in seconds
    epoch: int  # of the sequence at its start
    n_accepted: int  # accepted tokens in the text at its start
    position: int  # in the text, of the token that the decode makes on the draft's chain
    on_chain: bool = True  # whether the decode continues the draft's chain
    outcomes: frozenset[Outcome] = frozenset()  # the outcomes that the decode continues

    @property
    def n_sequences(self) -> int:
        """Number of sequences that the decode continues."""
        return self.on_chain + len(self.outcomes)


class Drafted(NamedTuple):
    """What it took to draft a token, for the draft's estimates to learn from."""

    n_tokens: int  # tokens in the decode; 0: its time is not representative
    seconds: float  # duration of the decode
    n_sequences: int = 1  # sequences in the decode
    latency_s: float | None = None  # seconds from an epoch's order to the epoch's first token, less those of its decode
    is_useful: bool = True  # remote draft: whether the target's sequence has taken the token or a prepared outcome
    n_prepared: int = 0  # remote draft: outcomes that the decode continued and the sequence has taken
    n_opened: int = 0  # remote draft: those of n_prepared that this decode was the first to continue


Prepared: TypeAlias = tuple[Outcome, int, Candidate]  # an outcome, and a token for a position after it


class State(NamedTuple):
    """What the target's thread finds in the queue."""

    drafted: list[Drafted]  # since it last looked
    candidates: Sequence[Candidate]  # the pending candidates
    may_draft: bool  # whether the draft may continue
    decode: Decode | None  # None: it is idle
    is_stale: bool  # whether that decode brings no candidate


class CandidateQueue:
    """Connects the target's thread with the one that drafts. It owns what is pending and what was prepared.

    The lock protects the sequence's candidates and all fields; the condition is notified when one has changed. Nothing
    is decided or learned under the lock.
    """

    def __init__(self, sequence: TokenSequence, metrics: Recorder) -> None:
        self._sequence = sequence
        self._metrics = metrics
        self._now = metrics.clock.now
        self._changed = metrics.clock.condition()
        self._drafted: list[Drafted] = []  # not learned from yet
        self._lookahead = Lookahead()
        self._decode: Decode | None = None
        self._n_told = 0  # accepted tokens that the draft has taken
        self._n_verified = 0  # tokens in the text if all candidates that are being verified are accepted; 0: none are
        self._may_prepare = False  # whether the draft may find something to do besides its chain
        self._is_open = False
        self._n_shown = 0  # pending candidates, as recorded last

    def open(self) -> None:
        """Let the draft begin."""
        with self._changed:
            self._is_open, self._decode, self._may_prepare = True, None, False

    def close(self) -> None:
        """Let the draft begin nothing more, and wake both sides. A second call does nothing."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def look(self) -> State:
        """The pending candidates, and what the draft does."""
        with self._changed:
            decode, sequence = self._decode, self._sequence
            is_stale = decode is not None and (
                self._is_useless()
                or (decode.epoch == sequence.epoch and not decode.on_chain)
                or decode.position < len(sequence.accepted)
            )
            drafted, self._drafted = self._drafted, []
            return State(drafted, tuple(sequence.pending), self._allows(), decode, is_stale)

    def wait(self, n: int, seconds: float) -> bool:
        """Wait until more than `n` candidates are pending. False if they are not within `seconds`, or it is closed."""
        end = self._now() + seconds
        with self._changed:
            while self._is_open and len(self._sequence.pending) <= n and self._changed.wait(end - self._now()):
                pass
            return len(self._sequence.pending) > n

    def verifies(self, n: int) -> None:
        """The target verifies the first `n` candidates now."""
        with self._changed:
            if self._lookahead.n_branches:
                self._n_verified, self._may_prepare = len(self._sequence.accepted) + n, True
                self._changed.notify_all()

    def commit(self, tokens: Sequence[int], n_verified: int) -> tuple[list[tuple[float, bool]], bool]:
        """TokenSequence.commit(), and whether the draft's current decode is now of no use."""
        with self._changed:
            scores = self._sequence.commit(tokens, n_verified)
            self._n_verified, self._may_prepare = 0, False
            self._notify()
            return scores, self._is_useless()

    def allow(self, lookahead: Lookahead) -> None:
        """Say how far the draft may run ahead."""
        with self._changed:
            self._lookahead = lookahead
            if not lookahead.n_branches:
                self._n_verified, self._may_prepare = 0, False
            self._notify()

    def wait_for_room(self) -> bool:
        """Wait until the draft may continue. False once the queue is closed."""
        with self._changed:
            while self._is_open and not self._may_prepare and not self._allows():
                self._changed.wait()
            return self._is_open

    def begin(self) -> DraftUpdate:
        with self._changed:
            sequence, n_told = self._sequence, self._n_told
            self._n_told, self._may_prepare = len(sequence.accepted), False
            self._decode = Decode(self._now(), sequence.epoch, self._n_told, self._n_told + len(sequence.pending))
            chain = tuple(sequence.pending) if self._n_verified else ()
            fresh, may_draft = sequence.accepted[n_told:], self._allows()
            return DraftUpdate(sequence.epoch, fresh, 0, None, self._lookahead, self._n_verified, may_draft, chain)

    def continues(self, outcomes: Iterable[Outcome], *, on_chain: bool) -> None:
        """The decode that was begun continues these outcomes, and with `on_chain` the draft's chain."""
        with self._changed:
            if self._decode is not None:
                self._decode = self._decode._replace(outcomes=frozenset(outcomes), on_chain=on_chain)

    def publish(
        self,
        epoch: int,
        position: int,
        candidate: Candidate | None,
        n_tokens: int,
        seconds: float,
        branches: Iterable[Prepared] = (),
        *,
        more: bool = True,
    ) -> bool:
        """See TargetSide. `branches`: what the same decode made of these. `more`: there is more to do beside it."""
        with self._changed:
            sequence, decode = self._sequence, self._decode
            prepared = [branch for branch in branches if sequence.prepare(epoch, *branch)]
            is_useful = candidate is not None and sequence.offer(epoch, position, candidate)
            more = is_useful or (more and epoch == sequence.epoch)
            self._may_prepare = self._n_verified > 0 and (self._may_prepare or more)
            self._decode = None
            self._drafted.append(Drafted(n_tokens, seconds, decode.n_sequences if decode is not None else 1))
            self._notify()
            if candidate is not None and epoch != sequence.epoch:
                candidate = None
            self._publish(position, candidate, prepared)
            return is_useful

    def _publish(self, position: int, candidate: Candidate | None, prepared: Sequence[Prepared]) -> None:
        """What a decode has made and is of use is pending or prepared now. Called under the lock."""

    def rest(self) -> None:
        """The draft has found nothing to do."""
        with self._changed:
            self._decode = None

    def _notify(self) -> None:
        n_pending = len(self._sequence.pending)
        if n_pending != self._n_shown:  # the queue of an idle draft shows nothing
            self._n_shown = n_pending
            self._metrics.pending(n_pending)
        self._changed.notify_all()

    def _allows(self) -> bool:
        """Whether the draft may continue its chain."""
        return self._is_open and self._lookahead.allows([candidate.confidence for candidate in self._sequence.pending])

    def _is_useless(self) -> bool:
        """Whether the draft's current decode is of no use. One that continues an outcome that came true is."""
        decode, sequence = self._decode, self._sequence
        if decode is None:
            return False
        if decode.epoch == sequence.epoch:
            return not decode.on_chain and len(sequence.accepted) > decode.n_accepted
        return decode.epoch != sequence.epoch - 1 or sequence.came_true not in decode.outcomes


class AsyncDraft(Proposer):
    """Base of drafts that deliver candidates through a queue.

    `sequence` is the text as the draft's queue knows it, with what is pending. `estimates` has what is measured, and
    what the controller wants the draft to do.
    """

    _queue_type = CandidateQueue
    _is_remote = False
    is_unable = False  # to draft for this text

    def __init__(self, estimates: DraftEstimates) -> None:
        self.estimates = estimates
        self._n_proposed = 0
        self._connect(TokenSequence((), 0), Recorder())

    @property
    def is_set_up(self) -> bool:
        """Whether it can decode."""
        return True

    def recall(self) -> None:
        """Before its first use: start from what is known of such a draft."""

    def begin(self, text: RunningText) -> None:
        """See Proposer. The queue is replaced, so that nothing from an earlier text arrives."""
        self._connect(TokenSequence(text.tokens, text.n_vocab, judges_all=text.judges_all), text.recorder)
        self._allow()  # also during the target's prefill

    def _connect(self, sequence: TokenSequence, recorder: Recorder) -> None:
        self._sequence, self._metrics, self._now = sequence, recorder, recorder.clock.now
        self._queue = self._queue_type(sequence, recorder)
        self._lookahead = Lookahead()  # as the queue knows it
        self._is_new = True  # whether the next proposal is the first one of a step
        self._in_vain = False  # whether a wait in this step brought nothing
        self._wait_ends: float | None = None  # in this step

    def propose(self, texts: Sequence[RunningText]) -> Proposal:
        if texts[0].n_fresh > 1:
            return Proposal()
        if self._is_new:
            self._is_new, self._in_vain, self._wait_ends = False, False, None
            self._allow()
        if self.estimates.schedule is Schedule.OFF:
            return Proposal(draft=self.estimates.name)
        state = self._look()
        return Proposal(state.candidates, math.inf if self._in_vain else self._next_s(state), draft=self.estimates.name)

    def _allow(self) -> None:
        """Let the draft run as far ahead as pays now."""
        if (lookahead := self.estimates.lookahead()) != self._lookahead:
            self._lookahead = lookahead
            self._queue.allow(lookahead)

    def wait(self, seconds: float, expected: Sequence[Candidate] = ()) -> None:  # noqa: ARG002 - see LocalDraft
        now = self._now()
        if self._wait_ends is None:
            self._wait_ends = now + self._longest_wait_s()
        self._in_vain = not self._queue.wait(self._n_proposed, min(seconds, self._wait_ends - now))

    def _longest_wait_s(self) -> float:
        """The limit of the wait for candidates in one step."""
        return math.inf

    def verifies(self, n: int) -> None:
        self._queue.verifies(n)

    def commit(self, results: Sequence[Result]) -> None:
        result = results[0]
        is_own = result.is_usual and result.draft == self.estimates.name
        scores, is_useless = self._queue.commit(result.tokens, result.n_candidates if is_own else 0)
        self._order(is_useless=is_useless)  # first: the draft may be waiting for it
        self._look()
        if not result.is_looked_up:
            self.estimates.learn_scores(scores)
        for position, rank, prepared in self._sequence.contradictions:
            self.estimates.acceptance.add_rank(rank)
            if is_own and self._lookahead.n_branches:  # the draft could prepare for this verification
                self._metrics.resolved(position, prepared)
        self._is_new = True

    def _look(self) -> State:
        state = self._queue.look()
        for drafted in state.drafted:
            self._learn_drafted(drafted)
        self._n_proposed = len(state.candidates)
        return state

    def _learn_drafted(self, drafted: Drafted) -> None:
        self.estimates.learn_draft(drafted.n_tokens, drafted.seconds, drafted.n_sequences)

    def _order(self, *, is_useless: bool) -> None:
        """There is news for the draft; `is_useless`: its current decode is of no use."""

    def _next_s(self, state: State) -> float:
        """Seconds until the next candidate is expected; infinity: never."""
        costs, decode = self.estimates.costs, state.decode
        times, latency_s = costs.concurrent, costs.latency_s
        if not times.token_s or not state.may_draft:
            return math.inf
        if decode is None:
            return latency_s + times.token_s
        decode_s = times.seconds(0.0, decode.n_sequences)
        left_s = decode.since + decode_s - self._now()
        if left_s < -(latency_s + decode_s):  # stalled
            return math.inf
        if state.is_stale and self._is_remote:  # it begins anew as soon as it is told
            return self.estimates.restart_s + times.token_s
        return max(left_s, 0.1 * times.token_s) + (times.token_s if state.is_stale else 0.0)

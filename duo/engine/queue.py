"""CandidateQueue: where the draft leaves its guesses and the target its decisions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Candidates, Guess

_LONGEST_WAIT_S = 0.1  # for a draft elsewhere, in one step: nobody knows what holds it up


class Helper(Protocol):
    """A draft on another machine."""

    model: str  # what is learned about one holds for all that run the same

    def notify(self) -> None:
        """There may be a new order for it. Never blocks; called from any thread, under the queue's lock."""
        ...


class Order(NamedTuple):
    """What a draft elsewhere is to know: what was accepted since, and whether it may guess on."""

    epoch: int
    tokens: list[int]
    may_draft: bool


class CandidateQueue:
    """A Session and a Policy between two threads.

    The lock protects both, and the fields below; the condition tells either side that something changed. Nobody
    holds the lock while a model computes.
    """

    def __init__(
        self,
        session: Session,
        policy: Policy,
        *,
        has_draft: bool,
        cancel: Callable[[], None] = lambda: None,
        watch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`has_draft` tells whether there is a draft at all.

        `cancel` ends the draft's present decode when it has become useless. `watch` is told, under the lock, how many
        candidates are pending.
        """
        self._cancel = cancel
        self._watch = watch
        self._session = session
        self._policy = policy
        self._n_prompt = len(session.accepted)
        self._changed = threading.Condition(threading.Lock())
        self._has_draft = has_draft
        self._asked = (0, 0)  # accepted and pending tokens when the draft was last asked for one in turn
        self._beside = False  # whether the draft works beside the target, on its own thread
        self._draft_began: float | None = None  # when it began the token in the making; None: there is none
        self._draft_epoch = 0  # and in which epoch
        self._helper: Helper | None = None  # the draft elsewhere that is employed
        self._employed_in = 0  # the epoch in which it was
        self._ordered: float | None = None  # when it was told of the present epoch, until its first guess

    def begin_beside(self) -> None:
        """From now on the draft works on its own thread."""
        with self._changed:
            self._beside = True
            self._draft_began = None

    def end_beside(self) -> None:
        """Tell the draft's thread to end, and wake whoever waits. A second call does nothing."""
        with self._changed:
            self._beside = False
            self._changed.notify_all()

    @property
    def policy(self) -> Policy:
        """The policy of the draft that works now."""
        with self._changed:
            return self._policy

    def employ(self, policy: Policy, helper: Helper | None = None) -> None:
        """Another draft takes over, with a policy of its own: `helper`, or the local one if that is None."""
        with self._changed:
            self._tell()  # the one that drafted until now
            self._policy = policy
            self._session.drop()
            self._watch(0)
            self._employed_in = self._session.epoch
            self._helper = helper
            self._beside = helper is not None
            self._draft_began = self._ordered = None
            self._tell()

    # The target's side

    def accepted_from(self, position: int) -> list[int]:
        """The accepted tokens from `position` on."""
        with self._changed:
            return self._session.accepted[position:]

    @property
    def n_accepted(self) -> int:
        """Tokens of the prompt and of what the target wrote."""
        with self._changed:
            return len(self._session.accepted)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return self._n_prompt

    def schedule(self) -> Schedule:
        """The schedule to follow now."""
        with self._changed:
            return self._policy.schedule

    def take(self, n_room: int) -> Candidates:
        """The candidates to verify now, after waiting for more if the policy finds it worth while.

        The text has room for `n_room` tokens. A wait ends early when the drafting does, and one that was in vain is
        the last.
        """
        end = math.inf if self._helper is None else time.perf_counter() + _LONGEST_WAIT_S
        with self._changed:
            next_s = self._next_s()
            while True:
                decision = self._policy.decide(self._session.confidences(), n_room, next_s)
                if decision.wait_s is None:
                    return self._session.candidates(decision.n_verify)
                wait_s = min(decision.wait_s, end - time.perf_counter())
                next_s = self._next_s() if self._wait_for_candidate(wait_s) else math.inf

    def take_in_turn(self, n_room: int) -> Candidates | None:
        """The candidates to verify now; None if the draft should make one more first, on the target's time."""
        with self._changed:
            state = len(self._session.accepted), self._session.n_pending
            # A draft that was asked and brought nothing is not asked again.
            next_s = self._policy.costs.draft_s if self._has_draft and state != self._asked else math.inf
            self._asked = state
            decision = self._policy.decide(self._session.confidences(), n_room, next_s)
            return self._session.candidates(decision.n_verify) if decision.wait_s is None else None

    def commit(self, tokens: tuple[int, ...], cost: StepCost | None = None) -> None:
        """Add the tokens that the target wrote, at this cost; None if it says nothing, and nothing was verified."""
        with self._changed:
            scores = self._session.commit(tokens, cost.n_candidates if cost is not None else 0)
            self._watch(self._session.n_pending)
            self._policy.learn_scores(scores)
            if cost is not None:
                self._policy.learn_step(len(tokens), cost)
            if self._draft_began is not None and self._draft_epoch != self._session.epoch:
                self._cancel()
                if self._helper is not None:
                    self._draft_began = None  # it begins again when it hears of this
            self._tell()
            # Only now: what was learned may be what the draft waits for.
            self._changed.notify_all()

    def _wait_for_candidate(self, seconds: float) -> bool:
        """Wait for one more candidate while there is a draft. False if none came."""
        n_pending, deadline = self._session.n_pending, time.perf_counter() + seconds
        while self._beside and self._session.n_pending == n_pending:
            if not self._changed.wait(deadline - time.perf_counter()):
                break
        return self._session.n_pending > n_pending

    def _next_s(self) -> float:
        """Seconds until the next candidate can be expected."""
        draft_s, latency_s = self._policy.costs.draft_s, self._policy.latency_s
        if not self._beside or not draft_s or not self._policy.may_draft(self._session.confidences()):
            return math.inf
        if self._draft_began is None:
            return latency_s + draft_s
        left_s = self._draft_began + draft_s - time.perf_counter()
        if left_s < -(latency_s + draft_s):  # it has stalled
            return math.inf
        stale = self._draft_epoch != self._session.epoch
        if stale and self._helper is not None:
            return latency_s + draft_s
        return max(left_s, 0.1 * draft_s) + (draft_s if stale else 0.0)

    def _tell(self) -> None:
        if self._helper is not None:
            self._helper.notify()

    def probe_due(self) -> bool:
        """Whether the draft should be asked how it would guess: see Policy.probe_due."""
        with self._changed:
            return self._policy.probe_due()

    def draft_threads(self) -> int:
        """Threads for a draft that takes turns with the target."""
        with self._changed:
            return self._policy.n_draft_threads

    # The draft's side

    def wait_for_room(self) -> bool:
        """Sleep until the draft may guess on. False when the drafting has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._beside or self._policy.may_draft(self._session.confidences()))
            return self._beside

    def begin(self, n_seen: int) -> tuple[int, list[int]]:
        """The draft begins a token: the epoch, and the accepted tokens from `n_seen` on."""
        with self._changed:
            self._draft_began = time.perf_counter()
            self._draft_epoch = self._session.epoch
            return self._session.epoch, self._session.accepted[n_seen:]

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:
        """Offer a guess, for which `n_tokens` were decoded in `seconds`.

        False if it is of no use: see Session.offer.
        """
        with self._changed:
            self._draft_began = None
            return self._publish(epoch, position, guess, n_tokens, seconds)

    def _publish(
        self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float, n_known: int | None = None
    ) -> bool:
        if self._beside == (self._policy.schedule is Schedule.ASYNC):  # not in the middle of a change
            self._policy.learn_draft(n_tokens, seconds)
        useful = self._session.offer(epoch, position, guess, n_known)
        self._watch(self._session.n_pending)
        self._changed.notify_all()
        return useful

    # The side of a draft elsewhere

    def publish_from(
        self, helper: Helper, epoch: int, n_known: int, position: int, guess: Guess, n_tokens: int, seconds: float
    ) -> bool:
        """publish() from elsewhere, made where `n_known` accepted tokens were known.

        False also if `helper` is not employed, was not when it was told of `epoch`, or has guessed far enough.
        """
        now = time.perf_counter()
        with self._changed:
            if self._helper is not helper or not self._employed_in <= epoch <= self._session.epoch:
                return False
            if self._session.n_pending >= self._policy.n_ahead or n_known > len(self._session.accepted):
                return False
            if epoch == self._session.epoch:
                self._draft_began = now  # it is at the next one already
                if self._ordered is not None:
                    self._policy.learn_latency(max(0.0, now - self._ordered - seconds))
                    self._ordered = None
            useful = self._publish(epoch, position, guess, n_tokens, seconds, n_known)
            if not useful or not self._policy.may_draft(self._session.confidences()):
                self._tell()
            return useful

    def order(self, helper: Helper, n_seen: int) -> Order | None:
        """What `helper`, which knows the first `n_seen` accepted tokens, is to know now; None: it is not employed."""
        with self._changed:
            if self._helper is not helper:
                return None
            epoch = self._session.epoch
            may_draft = self._policy.may_draft(self._session.confidences())
            if may_draft and (self._draft_began is None or self._draft_epoch != epoch):
                now = time.perf_counter()
                self._draft_began = now + self._policy.latency_s
                self._ordered = now if self._draft_epoch != epoch else None
                self._draft_epoch = epoch
            return Order(epoch, self._session.accepted[n_seen:], may_draft)

    def learn_probe(self, scores: list[tuple[float, bool]], n_tokens: int, seconds: float, *, whole: bool) -> None:
        """The draft's guesses at a piece of text that it read in one batch: see Policy.learn_probe."""
        with self._changed:
            self._draft_began = None
            self._policy.learn_probe(scores, n_tokens, seconds, whole=whole)

    def stop_drafting(self) -> None:
        """Say that no more guesses will come."""
        with self._changed:
            self._has_draft = self._beside = False
            self._policy.stop_drafting()
            self._changed.notify_all()

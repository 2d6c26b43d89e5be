"""Replays a Policy in virtual time: the behaviour of a pair on hardware with given costs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Guess

Guesses = Iterator[tuple[float, bool]]  # confidence of a candidate, and whether it is accepted if all before it are
_RIGHT, _WRONG = 0, 1
_ROOM = 1 << 30  # unlimited text


@dataclass(frozen=True, slots=True)
class Machine:
    """What decodes cost, in seconds; `target_s[i]` is for a batch of i+1 tokens. `beside_`: running concurrently."""

    target_s: Sequence[float]
    draft_s: float
    beside_target_s: Sequence[float]
    beside_draft_s: float
    read_s: float = 0.0  # per token of a long batch of the draft; 0: no probes


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    tokens: int = 0
    seconds: float = 0.0
    n_verified: list[int] = field(default_factory=list)  # candidates of each step
    waited_s: float = 0.0
    tokens_in: dict[Schedule, int] = field(default_factory=lambda: dict.fromkeys(Schedule, 0))

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def predict(policy: Policy, n_tokens: int = 2000) -> float | None:
    """The rate in tokens/s that `policy` predicts for `n_tokens` from what it has learned; None if that is too little.

    The default is long enough to make the cost of learning insignificant.
    """
    n = policy.n_max + 1
    if not policy.scores or not policy.alone.draft_s or not policy.forecasts():
        return None
    curves = (policy.alone.curve(n), policy.alone.draft_s, policy.beside.curve(n), policy.beside.draft_s)
    twin = Policy(policy.n_max, policy.n_ahead, policy.chooser.allowed)
    return replay(twin, Machine(*curves, policy.read_s), drawn(list(policy.scores)), n_tokens).rate


def constant(acceptance: float, seed: int = 0) -> Guesses:
    """Candidates that are all accepted with the same probability."""
    dice = random.Random(seed)  # noqa: S311 - a simulation
    while True:
        yield 0.0, dice.random() < acceptance


def drawn(scores: Sequence[tuple[float, bool]], seed: int = 0) -> Guesses:
    """Candidates drawn from observed `scores`."""
    dice = random.Random(seed)  # noqa: S311 - a simulation
    while True:
        yield dice.choice(scores)


def replay(policy: Policy, machine: Machine, guesses: Guesses, n_tokens: int) -> Replay:
    """Generate `n_tokens` with `policy` on `machine`, with a draft that produces `guesses`."""
    return _Replay(policy, machine, guesses).run(n_tokens)


class _Replay:
    """The target's and the draft's loop of duo.engine in one, with a virtual clock."""

    def __init__(self, policy: Policy, machine: Machine, guesses: Guesses) -> None:
        self._policy = policy
        self._machine = machine
        self._guesses = guesses
        self._session = Session([_RIGHT], 2)
        self._now = 0.0
        self._done_at = math.inf  # when a concurrent draft finishes its next token
        self._position = 1  # of that token
        self._unread = 1  # tokens that the draft has not decoded
        self._on_track = True  # whether all pending candidates are right
        self._result = Replay()
        policy.begin(1)

    def run(self, n_tokens: int) -> Replay:
        """Generate at least `n_tokens`."""
        while self._result.tokens < n_tokens:
            self._step()
        self._result.seconds = self._now
        return self._result

    def _step(self) -> None:
        began, schedule = self._now, self._policy.schedule
        beside = schedule is Schedule.ASYNC
        candidates = self._take(self._wait if beside else self._draft_one)
        start = self._now
        k = len(candidates)
        self._advance(start + (self._machine.beside_target_s if beside else self._machine.target_s)[k])
        accepted = next((i for i, token in enumerate(candidates) if token != _RIGHT), k)
        epoch = self._session.epoch
        self._policy.learn_scores(self._session.commit([_RIGHT] * (accepted + 1)))
        self._policy.learn_step(accepted + 1, StepCost(k, self._now - start, self._now - began))
        if self._session.epoch != epoch or not beside:
            self._done_at, self._on_track = math.inf, True
        if self._done_at == math.inf:
            self._begin_token()
        if schedule is Schedule.SYNC and k:
            self._unread = 2 if accepted == k else 1
        else:
            self._unread = self._unread + accepted + 1 if schedule is not Schedule.ASYNC else 1
        self._result.tokens += accepted + 1
        self._result.tokens_in[schedule] += accepted + 1
        self._result.n_verified.append(k)
        self._result.waited_s += start - began

    def _take(self, more: Callable[[float], bool]) -> tuple[int, ...]:
        """The candidates to verify, after `more` has obtained those that the policy waits for."""
        if self._machine.read_s and self._policy.probe_due():
            self._probe()
        next_s = self._next_s()
        while (decision := self._policy.decide(self._session.confidences(), _ROOM, next_s)).wait_s is not None:
            next_s = self._next_s() if more(decision.wait_s) else math.inf
        return self._session.candidates(decision.n_verify).tokens

    def _next_s(self) -> float:
        if self._policy.schedule is not Schedule.ASYNC:
            return self._policy.costs.draft_s
        late = self._position < len(self._session.accepted)
        draft_s = self._policy.costs.draft_s
        return self._done_at - self._now + late * draft_s if draft_s else math.inf

    def _draft_one(self, _: float) -> bool:
        """Schedule sync: draft one token, after decoding what is new of the text."""
        if self._unread > 1:
            seconds = (self._unread - 1) * self._machine.read_s
            self._now += seconds
            self._policy.learn_draft(self._unread, seconds)
        self._unread = 0
        self._now += self._machine.draft_s
        self._policy.learn_draft(1, self._machine.draft_s)
        self._position = len(self._session.accepted) + self._session.n_pending
        self._offer()
        return True

    def _wait(self, seconds: float) -> bool:
        """Schedule async: wait until the draft has published, at most `seconds`."""
        n_pending, end = self._session.n_pending, self._now + seconds
        self._advance(min(self._done_at, end))
        if self._session.n_pending == n_pending and self._done_at <= end:
            self._advance(self._done_at)  # the first one was late
        return self._session.n_pending > n_pending

    def _advance(self, end: float) -> None:
        """Run the draft until `end`."""
        while self._done_at <= end:
            self._now = self._done_at
            self._policy.learn_draft(1, self._machine.beside_draft_s)
            self._offer()
            self._begin_token()
        self._now = end

    def _offer(self) -> None:
        confidence, right = next(self._guesses)
        self._on_track = self._on_track and right
        token = _RIGHT if self._on_track else _WRONG
        self._session.offer(self._session.epoch, self._position, Guess(token, confidence))
        if self._position < len(self._session.accepted):
            self._on_track = True  # too late: the draft continues from the target's token
        self._position += 1

    def _begin_token(self) -> None:
        """The draft starts its next token, if the policy allows."""
        may = self._policy.may_draft(self._session.confidences())
        self._position = len(self._session.accepted) + self._session.n_pending
        self._done_at = self._now + self._machine.beside_draft_s if may else math.inf

    def _probe(self) -> None:
        n = min(self._policy.PROBE_TOKENS, self._unread)
        seconds = n * self._machine.read_s
        self._now += seconds
        whole = n == self._unread
        scores = [next(self._guesses) for _ in range(n if whole else n // 2)]
        self._policy.learn_probe(scores, n, seconds, whole=whole)
        self._unread = 0 if whole else len(self._session.accepted)

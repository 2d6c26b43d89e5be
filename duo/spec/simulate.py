"""Replays a Policy in virtual time: the behaviour of a pair on hardware with given costs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Guess

# The draft's prediction of a token of the text: its confidence, and whether it is right. By index in the text.
Guesses = Callable[[int], tuple[float, bool]]
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
    noise: float = 0.0  # standard deviation of the logarithm of a measured time
    spikes: float = 0.0  # share of the measurements that are several times too long


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    tokens: int = 0
    seconds: float = 0.0
    n_verified: list[int] = field(default_factory=list)  # candidates of each step
    waited_s: float = 0.0
    ends: list[tuple[int, float]] = field(default_factory=list)  # after each step: tokens and seconds so far
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
    return lambda _: (0.0, dice.random() < acceptance)


def drawn(scores: Sequence[tuple[float, bool]], seed: int = 0) -> Guesses:
    """Candidates drawn from observed `scores`."""
    dice = random.Random(seed)  # noqa: S311 - a simulation
    return lambda _: dice.choice(scores)


def recorded(scores: Sequence[tuple[float, bool]]) -> Guesses:
    """The predictions of a real text, which begins again at its end."""
    return lambda i: scores[i % len(scores)]


def replay(
    policy: Policy, machine: Machine, guesses: Guesses, n_tokens: int, n_prompt: int = 1, seed: int = 0
) -> Replay:
    """Generate `n_tokens` with `policy` on `machine`, with a draft that produces `guesses`.

    The draft has not decoded the prompt. The clock is exact; `seed` is that of the noise in what the policy is told.
    """
    return _Replay(policy, machine, guesses, n_tokens, n_prompt, seed).run()


class _Replay:
    """The target's and the draft's loop of duo.engine in one, with a virtual clock."""

    def __init__(
        self, policy: Policy, machine: Machine, guesses: Guesses, n_tokens: int, n_prompt: int, seed: int
    ) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - a simulation
        self._policy = policy
        self._machine = machine
        self._guesses = guesses
        self._session = Session([_RIGHT], 2)
        self._now = 0.0
        self._done_at = math.inf  # when a concurrent draft finishes its next token
        self._ready_at = 0.0  # when a concurrent draft has decoded the text
        self._position = 1  # of that token
        self._unread = n_prompt  # tokens that the draft has not decoded
        self._on_track = True  # whether all pending candidates are right
        self._result = Replay()
        self._n_tokens = n_tokens
        policy.begin(n_prompt, n_tokens, mode="greedy")
        if policy.n_max:
            policy.learn_warmup(1, self._measured(machine.draft_s))

    def run(self) -> Replay:
        """Generate until there are enough tokens."""
        while self._result.tokens < self._n_tokens:
            self._step()
            self._result.ends.append((self._result.tokens, self._now))
        self._result.seconds = self._now
        return self._result

    def _measured(self, seconds: float) -> float:
        """What the policy is told that a decode of `seconds` took."""
        if not self._machine.noise:
            return seconds
        spike = self._dice.uniform(1.5, 4) if self._dice.random() < self._machine.spikes else 1.0
        return seconds * spike * math.exp(self._dice.gauss(0, self._machine.noise))

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
        decode_s = self._measured(self._now - start)
        self._policy.learn_step(accepted + 1, StepCost(k, decode_s, start - began + decode_s))
        if self._session.epoch != epoch or not beside:
            self._done_at, self._on_track = math.inf, True
        if self._done_at == math.inf:
            self._begin_token()
        if schedule is Schedule.SYNC and k:
            self._unread = 2 if accepted == k else 1
        elif schedule is not Schedule.ASYNC or self._unread > 1:
            self._unread += accepted + 1
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
        self._policy.learn_draft(1, self._measured(self._machine.draft_s))
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
            self._policy.learn_draft(1, self._measured(self._machine.beside_draft_s))
            self._offer()
            self._begin_token()
        self._now = end

    def _offer(self) -> None:
        confidence, right = self._guesses(self._position - 1)
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
        if may and self._unread > 1:  # it decodes the text first, beside the target
            self._ready_at, self._unread = self._now + (self._unread - 1) * self._machine.read_s, 1
        self._done_at = max(self._now, self._ready_at) + self._machine.beside_draft_s if may else math.inf

    def _probe(self) -> None:
        n = min(self._policy.config.probe_tokens, self._unread)
        seconds = n * self._machine.read_s
        self._now += seconds
        whole = n == self._unread
        n_scored = min(n if whole else n // 2, self._result.tokens)
        scores = [self._guesses(i) for i in range(self._result.tokens - n_scored, self._result.tokens)]
        self._policy.learn_probe(scores, n, seconds, whole=whole)
        self._unread = 0 if whole else len(self._session.accepted)

"""Replays a Policy in virtual time: the behaviour of a pair on hardware with given costs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from duo.spec.constants import DEFAULT
from duo.spec.outcomes import MOST_DEEP, likely
from duo.spec.pair import PairModel
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Guess, Source

# The draft's prediction of a token of the text: its confidence, and whether it is right. By index in the text.
Guesses = Callable[[int], tuple[float, bool]]
_RIGHT, _WRONG = 0, 1
_SURELY = 50  # measurements
_WARMED = (2, 5, 9)  # sequences of which a warm-up measures t_d
_Where = tuple[int, int]  # an outcome: a position in the text, and a rank


@dataclass(slots=True)
class _ReplayedBranch:
    """An outcome that is prepared."""

    guesses: list[tuple[float, bool]] = field(default_factory=list)
    survival: float = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What decodes cost, in seconds; `target_s[i]` is for a batch of i+1 tokens. `beside_`: running concurrently."""

    target_s: Sequence[float]
    draft_s: float
    beside_target_s: Sequence[float]
    beside_draft_s: float
    read_s: float = 0.0  # per token of a long batch of the draft; 0: no probes
    pair_s: float = 0.0  # the draft's time for two tokens in one decode; 0: draft_s and read_s
    noise: float = 0.0  # standard deviation of the logarithm of a measured time
    spikes: float = 0.0  # share of the measurements that are several times too long
    # Of the draft concurrently, for 1, 2, … sequences; empty: as much as the same tokens one after the other.
    branch_s: Sequence[float] = ()
    latency_s: float = 0.0  # round trip to the draft
    aborts: bool = True  # whether the draft's device can abort a decode

    def reading_s(self, n_tokens: int) -> float:
        """Time for a decode of the draft alone, of `n_tokens`."""
        if n_tokens == 2 and self.pair_s:
            return self.pair_s
        return self.draft_s + (n_tokens - 1) * self.read_s

    def drafting_s(self, n_sequences: int) -> float:
        """Time for a decode of the draft beside the target, of one token in each of `n_sequences`."""
        known = self.branch_s or (self.beside_draft_s,)
        return known[min(n_sequences, len(known)) - 1] * max(1.0, n_sequences / len(known))


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    tokens: int = 0
    seconds: float = 0.0
    n_verified: list[int] = field(default_factory=list)  # candidates of each step
    waited_s: float = 0.0
    n_contradicted: int = 0  # drafted tokens, each time the first wrong one
    n_prepared: int = 0  # of these, outcomes that the draft had prepared
    n_opened: int = 0  # branches begun
    n_branches: int = 0  # that the draft would have in the end
    ends: list[tuple[int, float]] = field(default_factory=list)  # after each step: tokens and seconds so far
    tokens_in: dict[Schedule, int] = field(default_factory=lambda: dict.fromkeys(Schedule, 0))

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def inform(pair: PairModel, machine: Machine) -> None:
    """Tell `pair` all times of `machine`, as often as it takes to leave no doubt."""
    both = (
        (pair.alone, machine.target_s, machine.draft_s),
        (pair.beside, machine.beside_target_s, machine.beside_draft_s),
    )
    for _ in range(_SURELY):
        for costs, target_s, draft_s in both:
            costs.add_draft(draft_s)
            for n, seconds in enumerate(target_s, 1):
                costs.add_target(n, seconds)
        if machine.pair_s:
            pair.alone.add_pair(machine.pair_s)
        for n, seconds in enumerate(machine.branch_s[1:], 2):
            pair.beside.add_draft(seconds, n_sequences=n)
    if machine.latency_s:
        pair.learn_latency(machine.latency_s)


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
    policy: Policy,
    machine: Machine,
    guesses: Guesses,
    n_tokens: int,
    n_prompt: int = 1,
    seed: int = 0,
    ranks: Sequence[float] = DEFAULT.ranks,
) -> Replay:
    """Generate `n_tokens` with `policy` on `machine`, with a draft that produces `guesses`.

    The draft has not decoded the prompt. Where it is wrong, the right token is its alternative of rank r with
    probability `ranks[r]`. The clock is exact; `seed` is that of the noise in what the policy is told.
    """
    return _Replay(policy, machine, guesses, n_tokens, n_prompt, seed, ranks).run()


class _Replay:
    """The target's and the draft's loop of duo.engine in one, with a virtual clock."""

    def __init__(
        self,
        policy: Policy,
        machine: Machine,
        guesses: Guesses,
        n_tokens: int,
        n_prompt: int,
        seed: int,
        ranks: Sequence[float],
    ) -> None:
        self._ranks = tuple(accumulate(ranks))
        self._rank_dice = random.Random(seed)  # noqa: S311 - a simulation
        self._dice = random.Random(seed)  # noqa: S311 - a simulation
        self._probe_dice = random.Random(seed)  # noqa: S311 - a simulation
        self._policy = policy
        self._machine = machine
        self._guesses = guesses
        self._session = Session([_RIGHT], 2)
        self._now = 0.0
        self._done_at = math.inf  # when a concurrent draft finishes its next decode
        self._ready_at = 0.0  # when a concurrent draft can begin it
        self._position = 1  # of the token that it makes
        self._n_sequences = 1  # that it has
        self._on_chain = True  # whether the chain is among them
        self._verified = range(0)  # positions where the verification in progress may leave the chain
        self._branches: dict[_Where, _ReplayedBranch] = {}
        self._leaves: _Where | None = None  # where the text leaves the chain
        self._n_prompt = self._unread = n_prompt  # tokens that the draft has not decoded
        self._on_track = True  # whether all pending candidates are right
        self._result = Replay()
        self._n_tokens = n_tokens
        policy.begin(n_prompt, n_tokens, mode="greedy")
        if policy.n_max:
            policy.learn_warmup(1, self._measured(machine.draft_s))
            for n in _WARMED if machine.branch_s and policy.branches != 0 else ():
                policy.learn_branches(n, machine.drafting_s(n) / machine.draft_s)
        if machine.latency_s:
            policy.learn_latency(machine.latency_s)

    def run(self) -> Replay:
        """Generate until there are enough tokens."""
        while self._result.tokens < self._n_tokens:
            self._step()
            self._result.ends.append((self._result.tokens, self._now))
        self._result.seconds, self._result.n_branches = self._now, self._policy.lookahead().n_branches
        return self._result

    def _measured(self, seconds: float) -> float:
        """What the policy is told that a decode of `seconds` took."""
        if not self._machine.noise:
            return seconds
        spike = self._dice.uniform(1.5, 4) if self._dice.random() < self._machine.spikes else 1.0
        return seconds * spike * math.exp(self._dice.gauss(0, self._machine.noise))

    def _step(self) -> None:
        began = self._now
        if self._machine.read_s and (n := self._policy.probe_size()):
            self._probe(n)
        schedule = self._policy.schedule
        beside = schedule is Schedule.ASYNC
        candidates, source = self._take(self._wait if beside else self._draft_one)
        start, n_drafted = self._now, self._session.n_pending
        k = len(candidates)
        if beside:
            self._prepare(k)
        self._advance(start + (self._machine.beside_target_s if beside else self._machine.target_s)[k])
        accepted = next((i for i, token in enumerate(candidates) if token != _RIGHT), k)
        epoch = self._session.epoch
        self._policy.learn_scores(self._session.commit([_RIGHT] * (accepted + 1)))
        decode_s = self._measured(self._now - start)
        self._policy.learn_step(accepted + 1, StepCost(k, decode_s, start - began + decode_s, source))
        self._settle(contradicted=self._session.epoch != epoch, beside=beside)
        if self._done_at == math.inf:
            self._begin_token()
        if schedule is Schedule.SYNC and k and source is Source.DRAFT:
            # After all were accepted, the draft has not decoded the last of them, unless it has drafted more.
            self._unread = 2 if accepted == k == n_drafted else 1
        elif schedule is not Schedule.ASYNC or self._unread > 1:
            self._unread += accepted + 1
        self._result.tokens += accepted + 1
        self._result.tokens_in[schedule] += accepted + 1
        self._result.n_verified.append(k)
        self._result.waited_s += start - began

    def _take(self, more: Callable[[float], bool]) -> tuple[tuple[int, ...], Source]:
        """The candidates to verify, after `more` has obtained those that the policy waits for."""
        next_s, n_room = self._next_s(), self._n_tokens - self._result.tokens
        while (decision := self._policy.decide(n_room, self._session.propose(next_s))).wait_s is not None:
            next_s = self._next_s() if more(decision.wait_s) else math.inf
        if decision.origin is Source.ANY:
            return (_WRONG,) * decision.n_verify, Source.ANY
        return self._session.propose().candidates(decision.n_verify).tokens, Source.DRAFT

    def _next_s(self) -> float:
        if self._policy.schedule is not Schedule.ASYNC:
            return self._policy.costs.draft_s
        late = self._position < len(self._session.accepted)
        draft_s = self._policy.costs.draft_s
        return self._done_at - self._now + late * draft_s if draft_s else math.inf

    def _draft_one(self, _: float) -> bool:
        """Schedule sync: draft one token, after decoding what is new of the text."""
        if not self._session.n_pending:
            self._now += self._machine.latency_s
        n, self._unread = max(1, self._unread), 0
        seconds = self._machine.reading_s(n)
        self._now += seconds
        self._policy.learn_draft(n, self._measured(seconds))
        self._position = len(self._session.accepted) + self._session.n_pending
        self._offer(*self._guesses(self._position - 1))
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
            self._now, n = self._done_at, self._n_sequences
            self._policy.learn_draft(1, self._measured(self._machine.drafting_s(n)), n)
            self._grow()
            if self._on_chain:
                self._offer(*self._guesses(self._position - 1))
            self._begin_token()
        self._now = end

    def _prepare(self, k: int) -> None:
        """The verification of `k` candidates begins."""
        n_text = len(self._session.accepted)
        self._verified = range(n_text, n_text + k + 1)
        if self._done_at == math.inf and self._policy.lookahead().n_branches:  # the chain is as long as it may be
            self._begin_token()

    def _open(self) -> int:
        """Begin branches for likely outcomes that the chain has reached. Returns how many the draft's decode has."""
        lookahead = self._policy.lookahead()
        if not lookahead.n_branches or not self._verified:
            return 0
        chances = [lookahead.probability(confidence) for confidence in self._session.confidences()]
        for _, offset, rank in likely(chances[: len(self._verified)], lookahead.ranks, lookahead.n_branches):
            where = self._verified[offset], rank
            if where not in self._branches and len(self._branches) < lookahead.n_branches:
                self._branches[where] = _ReplayedBranch()
                self._result.n_opened += 1
        return len(self._due())

    def _due(self) -> list[tuple[_Where, _ReplayedBranch]]:
        """The branches that are worth another token."""
        lookahead = self._policy.lookahead()
        most = min(lookahead.n_ahead, MOST_DEEP)
        return [
            (where, branch)
            for where, branch in self._branches.items()
            if branch.survival >= lookahead.least and len(branch.guesses) < most
        ]

    def _grow(self) -> None:
        """The branches of a decode have one more token. What it is matters only in the one that comes true."""
        lookahead = self._policy.lookahead()
        for where, branch in self._due():
            confidence, right = 0.0, False
            chance = self._policy.calibration.mean
            if where == self._leaves:
                confidence, right = self._guesses(where[0] + len(branch.guesses))
                chance = lookahead.probability(confidence)
            branch.guesses.append((confidence, right))
            branch.survival *= chance

    def _settle(self, *, contradicted: bool, beside: bool) -> None:
        """The verification has ended: an outcome that was prepared becomes the chain."""
        leaves, is_due = self._leaves, self._leaves in dict(self._due())
        branch = self._branches.get(leaves) if leaves is not None else None
        self._branches, self._verified = {}, range(0)
        if not contradicted and beside:
            return
        self._on_track, self._leaves = True, None
        if contradicted and leaves is not None:
            self._policy.learn_ranks([leaves[1]])
            self._result.n_contradicted += 1
        if contradicted and beside and branch is not None:
            self._result.n_prepared += 1
            self._position, self._on_chain = len(self._session.accepted), is_due
            for guess in branch.guesses:
                self._offer(*guess)
            return
        if beside:
            self._ready_at = max(self._ready_at, self._now + self._machine.latency_s)
        if beside and not self._machine.aborts and self._done_at < math.inf:
            self._ready_at = max(self._ready_at, self._done_at)
        self._done_at = math.inf

    def _offer(self, confidence: float, right: bool) -> None:
        if self._on_track and not right:
            dice = self._rank_dice.random()
            rank = next((r for r, share in enumerate(self._ranks) if dice < share), -1)
            self._leaves = self._position, rank
        self._on_track = self._on_track and right
        token = _RIGHT if self._on_track else _WRONG
        self._session.offer(self._session.epoch, self._position, Guess(token, confidence))
        if self._position < len(self._session.accepted):
            self._on_track, self._leaves = True, None  # too late: the draft continues from the target's token
        self._position += 1

    def _begin_token(self) -> None:
        """The draft starts its next decode, if the policy allows."""
        may, n_branches = self._policy.lookahead().allows(self._session.confidences()), self._open()
        self._on_chain, self._n_sequences = may, may + n_branches
        self._position = len(self._session.accepted) + self._session.n_pending
        if may and self._unread > 1:  # it decodes the text first, beside the target
            self._ready_at, self._unread = self._now + (self._unread - 1) * self._machine.read_s, 1
        seconds = self._machine.drafting_s(self._n_sequences) if self._n_sequences else math.inf
        self._done_at = max(self._now, self._ready_at) + seconds

    def _probe(self, n: int) -> None:
        seconds = self._machine.reading_s(n)
        self._now += seconds
        whole = n == self._unread
        n_scored = min(n - 1 if whole else n // 2, self._result.tokens)
        scores = [self._guesses(i) for i in range(self._result.tokens - n_scored, self._result.tokens)]
        if not whole:
            scores = [(gap, right and self._probe_dice.random() < DEFAULT.without_context) for gap, right in scores]
        self._policy.learn_probe(scores, n, seconds, whole=whole)
        self._unread = 0 if whole else self._n_prompt + self._result.tokens

"""A pair on hardware with given costs, in virtual time: the engine itself, with models that only take time."""

from __future__ import annotations

import math
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, islice, takewhile
from typing import NamedTuple

import numpy as np

from benchmarks.virtual_clock import Load, VirtualClock
from benchmarks.virtual_link import VirtualLink
from duo.config import MAX_BRANCHES, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.decoder import Decoder
from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import ConnectedDrafts, Proposer, RunningText
from duo.engine.recorder import Recorder
from duo.engine.request import Ending
from duo.errors import DecodeAborted
from duo.speculation.constants import DEFAULT
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule, TargetAlone
from duo.speculation.sampling import CandidateSampler
from duo.speculation.types import Candidate, Logits, Origin, Proposal, SizedResult, StepCost
from duo.speculation.verify import Verifier

# The draft's prediction of a token of the text: its confidence, and whether it is right. By index in the text.
Predictions = Callable[[int], tuple[float, bool]]
MODE = "greedy"  # of sampling
_WARMED = (2, 5, 9)  # sequences of which a warm-up measures t_d
_N_VOCAB = 8
_WRONG = 2  # a candidate that is wrong everywhere; the token at each position is 0 or 1, and never that before it
_OTHERS = range(3, _N_VOCAB)


class Decode(NamedTuple):
    """A decode of the draft. Of each sequence: the position of the token it leads to, and whether all before is right.

    Of one that was aborted, nothing.
    """

    start: float
    end: float
    rows: tuple[tuple[int, bool], ...] = ()


@dataclass(slots=True)
class Replay:
    tokens: int = 0
    seconds: float = 0.0
    n_verified: list[int] = field(default_factory=list)  # candidates of each step
    n_contradicted: int = 0  # while there were branches: drafted tokens, each time the first wrong one
    n_prepared: int = 0  # of these, outcomes that the draft had prepared
    n_opened: int = 0  # branches begun
    ends: list[tuple[int, float]] = field(default_factory=list)  # after each step: tokens and seconds so far
    tokens_in: dict[Schedule, int] = field(default_factory=lambda: dict.fromkeys(Schedule, 0))
    decodes: list[Decode] = field(default_factory=list)  # of the draft
    target_s: float = 0.0  # in which the target computed

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def add(self, n_tokens: int, end_s: float) -> None:
        self.tokens, self.seconds = self.tokens + n_tokens, end_s
        self.ends.append((self.tokens, end_s))


def constant(acceptance: float, seed: int = 0) -> Predictions:
    """Candidates that are all accepted with the same probability."""
    dice = random.Random(seed)
    return recorded([(0.0, dice.random() < acceptance) for _ in range(1 << 14)])


def recorded(scores: Sequence[tuple[float, bool]]) -> Predictions:
    """The predictions of a real text, which begins again at its end."""
    return lambda i: scores[i % len(scores)]


def replay(
    controller: Controller, draft: DraftEstimates | None, machine: Machine, candidates: Predictions, n_tokens: int,
    n_prompt: int = 1, seed: int = 0, ranks: Sequence[float] = DEFAULT.ranks, load: Load | None = None,
    quotes: int | None = None,
) -> Replay:  # fmt: skip
    """Generate `n_tokens` on `machine`, with a draft that produces `candidates`.

    The draft has not decoded the prompt. Where it is wrong, the right token is its alternative of rank r with
    probability `ranks[r]`. The clock is exact; `seed` is that of the noise in what NoisyController is told. `load` is
    what else the machine computes, and `quotes` the seed of what a lookup finds; None: there is none.
    """
    clock = VirtualClock(load)
    if isinstance(controller, NoisyController):
        controller.noise.disturb(machine, seed)
    if draft is not None:
        draft.learn_warmup(1, machine.draft_s)
        warmed = _WARMED if machine.branch_s and draft.branches != 0 else ()
        for n in warmed if not draft.remote else ():
            draft.learn_branches(n, drafting_s(machine, n) / machine.draft_s)
        if machine.latency_s:
            draft.costs.add_latency(machine.latency_s)
    prompt = [position % 2 for position in range(n_prompt)]
    target = _VirtualTarget(clock, machine)
    target.append(0, prompt[:-1])
    recorder, sampler = Recorder(clock), VirtualSampler(candidates, n_prompt, n_tokens, seed, ranks)
    local = link = context = None
    if draft is not None and draft.remote:
        times = {n: drafting_s(machine, n) for n in (1, *warmed)}
        context = _VirtualDraft(clock, machine)
        link = VirtualLink(clock, machine.latency_s, draft, context, sampler, times)
    elif draft is not None:
        context = _VirtualDraft(clock, machine)
        local = LocalDraft(Cache(context), draft)
    others = [Quotes(quotes, n_prompt, controller.n_most)] if quotes is not None else []
    generate(target, local, controller, prompt, n_tokens, recorder, sampler, VirtualVerifier(), others, link)
    if link is not None:
        link.close()
    found = Replay(
        n_verified=[step.n_candidates for step in recorder.steps], n_contradicted=recorder.contradictions.total(),
        n_prepared=recorder.hits.total(), n_opened=recorder.n_prepared, decodes=getattr(context, "decodes", []),
        target_s=sum(event.end - event.start for event in recorder.events if event.name in ("decode", "prompt")),
    )  # fmt: skip
    for step in recorder.steps:
        found.add(step.n_tokens, step.end)
        found.tokens_in[step.schedule] += step.n_tokens
    return found


def generate(
    target: Decoder, draft: LocalDraft | None, controller: Controller | TargetAlone, prompt: Sequence[int],
    n_tokens: int, recorder: Recorder, sampler: CandidateSampler, verifier: Verifier, others: Sequence[Proposer] = (),
    remote: ConnectedDrafts | None = None,
) -> None:  # fmt: skip
    """Let the engine write `n_tokens`, with one thread for each model. `others`: proposers besides the draft."""
    ending = Ending(StopConfig(n_tokens, ignore_eos=True), lambda _: b".", lambda _: False)
    text = RunningText(list(prompt), ending, recorder, verifier, sampler, SamplingConfig(), target.n_vocab, mode=MODE)
    is_apart = draft is not None and draft.estimates.separate_devices
    threads = ThreadConfig(1, 1, (1,), (1, 1), separate_devices=is_apart)
    proposers = Proposers(controller, [draft] if draft is not None else [], remote, others)
    Generation(target, text, threads, proposers).run(lambda _: None, threading.Event())
    if recorder.draft_error:
        raise RuntimeError(recorder.draft_error)


def reading_s(machine: Machine, n_tokens: int) -> float:
    """Time for a decode of the draft alone, of `n_tokens`."""
    return machine.pair_s if n_tokens == 2 and machine.pair_s else machine.draft_s + (n_tokens - 1) * machine.read_s


def drafting_s(machine: Machine, n_sequences: int) -> float:
    """Time for a concurrent decode of the draft, of one token in each of `n_sequences`."""
    known = machine.branch_s or (machine.concurrent_draft_s,)
    return known[min(n_sequences, len(known)) - 1] * max(1.0, n_sequences / len(known))


class Quotes(Proposer):
    """What a lookup finds in a text that now and then quotes what it has read: synthetic, and well calibrated."""

    QUOTED, FREE = (24, 0.95), (40, 0.25)  # mean length in tokens, and how often a candidate is right
    FOUND = 0.3  # share of the other places where something is found

    def __init__(self, seed: int, n_prompt: int, n_most: int) -> None:
        self._n_prompt, self._n_most, dice = n_prompt, n_most, random.Random(seed)
        self._rows: list[tuple[float, bool] | None] = []  # by token of the text: the chance, and whether it is right
        while len(self._rows) < 1 << 10:
            for (length, chance), share in ((self.FREE, self.FOUND), (self.QUOTED, 1.0)):
                n = 1 + int(dice.expovariate(1 / length))
                self._rows += [(chance, dice.random() < chance) if dice.random() < share else None for _ in range(n)]

    def propose(self, texts: Sequence[RunningText]) -> Proposal:
        """See Proposer."""
        if texts[0].n_fresh > 1:
            return Proposal()
        first = len(texts[0].tokens)
        found = takewhile(bool, (self._rows[i % len(self._rows)] for i in count(first - self._n_prompt)))
        rows = [row for row in islice(found, self._n_most) if row]
        candidates = [Candidate(i % 2 if right else _WRONG, chance) for i, (chance, right) in enumerate(rows, first)]
        chances = [(chance, 100.0) for chance, _ in rows]
        return Proposal(candidates, math.inf, Origin.LOOKUP, chances)


class Noise:
    """The noise of a machine's measurements. It costs no time, because only what is told has it."""

    def __init__(self) -> None:
        self._noise = self._spikes = 0.0
        self._dice = random.Random(0)

    def disturb(self, machine: Machine, seed: int) -> None:
        self._noise, self._spikes, self._dice = machine.noise, machine.spikes, random.Random(seed)

    def measured(self, seconds: float) -> float:
        if not self._noise:
            return seconds
        spike = self._dice.uniform(1.5, 4) if self._dice.random() < self._spikes else 1.0
        return seconds * spike * math.exp(self._dice.gauss(0, self._noise))


class NoisyController(Controller):
    """Is told times with noise."""

    def __init__(self, n_most: int = 0) -> None:
        super().__init__(n_most)
        self.noise = Noise()

    def learn(self, results: Sequence[SizedResult], cost: StepCost | None) -> None:
        if cost is not None:
            decode_s = self.noise.measured(cost.decode_s)
            cost = cost._replace(decode_s=decode_s, total_s=cost.total_s - cost.decode_s + decode_s)
        super().learn(results, cost)


@dataclass(eq=False)
class NoisyEstimates(DraftEstimates):
    """Is told times with noise."""

    noise: Noise = field(default_factory=Noise, kw_only=True)

    def learn_warmup(self, n_threads: int, seconds: float) -> None:
        super().learn_warmup(n_threads, min(self.noise.measured(seconds) for _ in range(2)))  # as engine/contexts.py

    def learn_draft(self, n_tokens: int, seconds: float, n_sequences: int = 1) -> None:
        super().learn_draft(n_tokens, self.noise.measured(seconds), n_sequences)


class VirtualContext:
    """A Decoder that takes time, and whose cache knows of each sequence its length and how much of it is right.

    A row of logits is the number of tokens before it and whether these are all right.
    """

    n_ctx = n_batch = 1 << 20
    n_vocab = _N_VOCAB
    n_rollback: int | None = None
    n_branches = 0
    was_first = False

    def __init__(self, clock: VirtualClock, machine: Machine) -> None:
        self._clock, self._machine, self._condition = clock, machine, clock.condition()
        self._sequences = {0: (0, 0)}
        self._first = 0  # the token at the beginning of the cache, which a probe without context has elsewhere
        self._is_stopped = self._is_cancelled = False
        self.decodes: list[Decode] = []

    @property
    def n_past(self) -> int:
        return self._sequences[0][0]

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        start = self._take(self._seconds(len(tokens)))
        rows = [self.append(0, [token]) for token in tokens]
        self.decodes.append(Decode(start, self._clock.now(), (rows[-1],)))
        return np.array(rows[len(rows) - n_rows :], np.float64).reshape(n_rows, 2)

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        start = self._take(drafting_s(self._machine, len(tokens)))
        rows = [self.append(sequence, [token]) for sequence, token in tokens]
        self.decodes.append(Decode(start, self._clock.now(), tuple(rows)))
        return np.array(rows, np.float64)

    def append(self, sequence: int, tokens: Sequence[int]) -> tuple[int, bool]:
        n, n_right = self._sequences[sequence]
        for token in tokens:
            self._first = self._first if n else token
            if n == n_right and token == (self._first + n) % 2:
                n_right += 1
            n += 1
        self._sequences[sequence] = n, n_right
        return n, n == n_right

    def _seconds(self, n: int) -> float:
        raise NotImplementedError

    def _take(self, seconds: float) -> float:
        """Wait until the decode is done, or aborted if the device can do that. Returns its start."""
        self._is_cancelled = self._is_stopped
        start = self._clock.now()
        end = start + seconds
        if self._clock.load is not None:
            end, lost_s = self._clock.load.take(self._clock.now(), seconds)
            self._clock.lost_s += lost_s
        while not self._is_cancelled and (left_s := end - self._clock.now()) > 0 and self._condition.wait(left_s):
            pass
        if self._is_cancelled:
            self.decodes.append(Decode(start, self._clock.now()))
            raise DecodeAborted("aborted")
        return start

    def rollback(self, n_past: int) -> None:
        self._sequences[0] = n_past, min(n_past, self._sequences[0][1])

    def branch(self, sequence: int, n_past: int) -> None:
        self._sequences[sequence] = n_past, min(n_past, self._sequences[0][1])

    def adopt(self, sequence: int) -> None:
        self._sequences[0] = self._sequences.pop(sequence)

    def drop(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)

    def cancel(self) -> None:
        if self._machine.aborts:
            self._is_cancelled = True
            self._condition.notify_all()

    def abort(self) -> None:
        self._is_stopped = True
        self.cancel()

    def resume(self) -> None:
        self._is_stopped = False

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...


class _VirtualTarget(VirtualContext):
    def _seconds(self, n: int) -> float:
        machine = self._machine
        return (machine.concurrent_target_s if self._clock.n_threads else machine.target_s)[n - 1]


class _VirtualDraft(VirtualContext):
    n_branches = MAX_BRANCHES

    def _seconds(self, n: int) -> float:
        machine = self._machine
        if self._clock.n_threads:
            return machine.concurrent_draft_s + (n - 1) * machine.read_s
        return reading_s(machine, n)


class VirtualSampler:
    """Chooses the draft's tokens, from what is known of its predictions."""

    n_recent = 0

    def __init__(
        self, candidates: Predictions, n_prompt: int, n_tokens: int, seed: int, ranks: Sequence[float]
    ) -> None:
        self._predictions, self._n_prompt, self._dice = candidates, n_prompt, random.Random(seed)
        reached, dice = list(accumulate(ranks)), random.Random(seed)
        self._n_ranks = len(reached)
        self._rank = [bisect_right(reached, dice.random()) for _ in range(n_prompt + n_tokens + 64)]

    def candidate(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:  # noqa: ARG002
        confidence, right = self._predictions(position - self._n_prompt)
        others = [*_OTHERS[: self._n_ranks]]
        if right and logits[1]:
            return Candidate(position % 2, confidence, alternatives=tuple(others))
        if (rank := self._rank[position % len(self._rank)]) < len(others):
            others.insert(rank, position % 2)
        return Candidate(_WRONG, confidence, alternatives=tuple(others[: self._n_ranks]))

    def judge(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:  # noqa: ARG002
        found = self.candidate(logits, position)
        is_blind = logits[0] < position
        return found._replace(token=_WRONG) if is_blind and self._dice.random() >= DEFAULT.without_context else found


class VirtualVerifier(Verifier):
    """Knows the text."""

    def verify(
        self, target_logits: Logits, candidates: Sequence[Candidate], position: int, recent: Sequence[int] = ()
    ) -> tuple[int, ...]:
        del target_logits, recent
        tokens = [candidate.token for candidate in candidates]
        n = next((i for i, token in enumerate(tokens) if token != (position + i) % 2), len(tokens))
        return *tokens[:n], (position + n) % 2

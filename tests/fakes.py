"""A fake model and context with the rules of llama.cpp's contexts; drafts and a controller that follow a script."""

import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import numpy as np

from duo.config import ThreadConfig
from duo.engine.generation import Proposers
from duo.engine.local_draft import LocalDraft
from duo.engine.recorder import Clock
from duo.errors import DecodeAborted, RollbackError
from duo.speculation.acceptance import Acceptance, Lookahead
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.forecast import Forecast
from duo.speculation.modes import ALL, ALONE, ASYNC, OFF, SYNC, Mode, Schedule
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import Logits, Plan, Planned, Proposal, SizedResult, StepCost

N_VOCAB = 17

# All different, so that a test sees which of them was used.
THREADS = ThreadConfig(target=6, target_batch=8, draft=(4,), concurrent=(5, 1))


def next_token(prefix: Sequence[int], salt: int = 0) -> int:
    """What the fake target writes after `prefix`: pseudo-random, and depends on all of it."""
    state = 2166136261 + salt
    for token in prefix:
        state = (state ^ token) * 16777619 % 2**32
    return state // 7 % N_VOCAB


def text_after(prompt: Sequence[int], n: int) -> list[int]:
    """The `n` tokens that the fake target writes after `prompt`."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ManualClock(Clock):
    """Shows `time`, which the test sets. Its waits are real."""

    time = 100.0

    def now(self) -> float:
        return self.time


CERTAIN = (1.0,) * (len(Acceptance.EDGES) + 1)  # the acceptance of a draft that is always right


class Eager(DraftEstimates):
    """Of a draft that drafts whatever it may, so that nothing depends on time. See EagerController."""

    def __init__(
        self, n_max: int, n_ahead: int, schedule: Schedule = ASYNC, draft_threads: Sequence[int] = (1,),
        target: TargetCosts | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.scores: list[tuple[float, bool]] = []
        super().__init__(target or TargetCosts(), n_max, n_ahead, (schedule,), draft_threads, **options)
        self.schedule = schedule

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        self.scores += (scores := list(scores))
        super().learn_scores(scores)

    def forecasts(self, *_: Any, **__: Any) -> dict[Schedule, Forecast]:
        return {}

    def lookahead(self) -> Lookahead:
        return Lookahead(self.n_ahead, 0.0, CERTAIN) if self.schedule is ASYNC else Lookahead()


RANKS = (0.6, 0.3, 0.1)


class Preparing(Eager):
    """Concurrent, and prepares as many outcomes as it may, however unlikely they are."""

    def __init__(self, n_max: int, n_ahead: int, n_branches: int = 4, **options: Any) -> None:
        super().__init__(n_max, n_ahead, **options)
        self._n_wanted = n_branches

    def lookahead(self) -> Lookahead:
        return Lookahead(self.n_ahead, 0.0, (0.5,) * len(CERTAIN), self._n_wanted, RANKS)


class Scripted(Eager):
    """Follows a script: the schedule of each step, and whether to probe in each that is not async."""

    def __init__(
        self,
        n_max: int,
        n_ahead: int,
        schedules: Iterator[Schedule],
        probes: Iterator[bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(n_max, n_ahead, **options)
        self.schedules, self._now = ALL, next(schedules)
        self._script, self._probes = schedules, probes or iter(())

    def begin(self, sampling: str, n_prompt: int) -> None:
        super().begin(sampling, n_prompt)
        self._n_tokens = n_prompt

    def follow(self, n_tokens: int) -> Mode:
        """The step that has added `n_tokens` is over (0: it taught nothing): the mode of the next one."""
        if n_tokens:
            self._n_tokens += n_tokens
            self._now = next(self._script, self._now)
        # More than there are, or none; never before there is a token and one to predict it from.
        is_due = self._now is not ASYNC and self._n_tokens > 1 and next(self._probes, False)
        self.n_probe = 10_000 if is_due and not self.has_ended else 0
        return self.step_mode

    @property
    def step_mode(self) -> Mode:
        self.schedule = OFF if self.has_ended else self._now
        return ALONE if self.schedule is OFF else Mode(self.name, self.schedule)


def restless(seed: int, n_max: int = 4, n_ahead: int = 6, **options: Any) -> Scripted:
    """Changes the schedule at random at every step, and probes at random."""
    dice = random.Random(seed)
    schedules, probes = (dice.choice(ALL) for _ in repeat(0)), (dice.random() < 0.2 for _ in repeat(0))
    return Scripted(n_max, n_ahead, schedules, probes, **options)


class EagerController(Controller):
    """Verifies whatever of the draft's is ready. In schedule sync, as many are drafted as can be verified."""

    def __init__(self, target: TargetCosts | None = None) -> None:
        super().__init__(target=target)

    def begin(
        self, drafts: Sequence[DraftEstimates], n_prompt: int, n_room: int | None = None, sampling: str = ""
    ) -> None:
        super().begin(drafts, n_prompt, n_room, sampling)
        for draft in drafts:
            if isinstance(draft, Scripted):
                self.chooser.now = draft.step_mode
                self.follow()

    def learn(self, results: Sequence[SizedResult], cost: StepCost | None) -> None:
        super().learn(results, cost)
        for draft in self.drafts.values():
            if isinstance(draft, Scripted):
                self.chooser.now = draft.follow(len(results[0].tokens) if cost is not None else 0)
                self.follow()

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        super().plan(texts, proposals)  # it notices drafts that have ended
        at, draft = next((i for i, each in enumerate(proposals) if each.draft == self.mode.draft), -1), self.draft
        if draft is None and not self.drafts and proposals:
            return Plan(proposals[0].candidates[: max(0, texts[0].n_room - 1)], 0)
        if draft is None or at < 0:
            return Plan()
        drafted, n = proposals[at], max(0, min(draft.n_max, texts[0].n_room - 1))
        if draft.schedule is SYNC and len(drafted.candidates) < n and drafted.next_s < math.inf:
            return Plan(proposer=at, wait_s=0.0)
        return Plan(drafted.candidates[:n], at)


def eager(draft: LocalDraft) -> Proposers:
    """This draft alone, and a controller that is as eager."""
    return Proposers(EagerController(draft.estimates.target), [draft])


def eager_lookup(sources: Proposers) -> Proposers:
    """The lookup among these `sources` alone, and a controller that takes all that the lookup finds."""
    return Proposers(EagerController(), others=sources.others)


class FakeContext:
    """Decodes `choose(prefix)` with certainty. Refuses whatever llama.cpp would refuse.

    With `n_rollback` it is a hybrid model: see duo.llama.Context. `during` is called within every decode. `others` are
    the next-best tokens.
    """

    def __init__(
        self,
        choose: Callable[[Sequence[int]], int] = next_token,
        during: Callable[[], object] = lambda: None,
        n_ctx: int = 1000,
        n_batch: int = 8,
        n_vocab: int = N_VOCAB,
        n_rollback: int | None = None,
        n_branches: int = 0,
        others: Callable[[Sequence[int]], Sequence[int]] = lambda _: (),
    ) -> None:
        self.n_rollback = n_rollback
        self.n_branches = n_branches
        self.branches: dict[int, list[int]] = {}
        self.others = others
        self._n_removable = 0
        self.tokens: list[int] = []
        self.choose = choose
        self.during = during
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_vocab = n_vocab
        self.threads: set[int] = set()  # that have called decode
        self.batches: list[int] = []
        self.teams: list[int] = []  # the number of threads that each batch was computed with; 0: as it was made
        self._n_threads = (0, 0)
        self._busy = threading.Lock()
        self.was_first = False
        self._aborted = False
        self._cancelled = False

    @property
    def n_past(self) -> int:
        return len(self.tokens)

    @contextmanager
    def _decoding(self, tokens: Sequence[int]) -> Iterator[None]:
        """What every decode does before it changes the cache."""
        assert self._busy.acquire(blocking=False), "two threads in one context"
        try:
            assert len(self.batches) < 5000, "an endless loop"
            assert all(0 <= token < self.n_vocab for token in tokens)
            if self._aborted:
                raise DecodeAborted("aborted")
            self.threads.add(threading.get_ident())
            self.batches.append(len(tokens))
            self._cancelled = False
            self.during()
            if self._cancelled:
                raise DecodeAborted("cancelled")
            yield
        finally:
            self._busy.release()

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        assert 1 <= len(tokens) <= self.n_batch, f"a batch of {len(tokens)}"
        assert 0 <= n_rows <= len(tokens)
        with self._decoding(tokens):
            assert len(self.tokens) + len(tokens) <= self.n_ctx, "the context is full"
            self.teams.append(self._n_threads[len(tokens) > 1])
            self.tokens += tokens
            self._n_removable = min(self.n_rollback or 0, len(tokens) - 1)
            ends = range(len(self.tokens) - n_rows + 1, len(self.tokens) + 1)
            return np.stack([self._logits(self.tokens[:end]) for end in ends]) if n_rows else np.empty((0, 0))

    def _logits(self, prefix: Sequence[int]) -> Logits:
        logits = np.zeros(self.n_vocab, np.float32)
        for rank, token in enumerate(self.others(prefix)):
            logits[token] = 4.0 - rank
        logits[self.choose(prefix)] = 5.0
        return logits

    def branch(self, sequence: int, n_past: int) -> None:
        assert 1 <= sequence <= self.n_branches
        assert 0 <= n_past <= len(self.tokens), f"branch at {n_past} of {len(self.tokens)}"
        self.branches[sequence] = self.tokens[:n_past]

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        assert len({sequence for sequence, _ in tokens}) == len(tokens)
        with self._decoding([token for _, token in tokens]):
            for sequence, token in tokens:
                (self.branches[sequence] if sequence else self.tokens).append(token)
            return np.stack([self._logits(self.branches[s] if s else self.tokens) for s, _ in tokens])

    def adopt(self, sequence: int) -> None:
        self.tokens = self.branches.pop(sequence)

    def drop(self, sequence: int) -> None:
        self.branches.pop(sequence, None)

    def rollback(self, n_past: int) -> None:
        assert 0 <= n_past <= len(self.tokens), f"cannot roll back from {len(self.tokens)} to {n_past}"
        n = len(self.tokens) - n_past
        if n and n_past and self.n_rollback is not None:
            if n > self._n_removable:
                raise RollbackError(f"cannot roll back {n} tokens")
            self._n_removable = 0
        del self.tokens[n_past:]

    def cancel(self) -> None:
        self._cancelled = True

    def abort(self) -> None:
        self._aborted = self._cancelled = True

    @property
    def aborted(self) -> bool:
        return self._aborted

    def resume(self) -> None:
        self._aborted = False

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        self._n_threads = (n_threads, n_threads_batch)

"""Judges the policy for several texts in virtual time, as benchmarks/regret.py that for one.

python -m benchmarks.joint [MACHINE...] [--cases N] [-j JOBS] [-s SEED] [--set NAME=VALUE]... [-v]

In each case, two to four texts of 256 tokens are written together by duo.engine.together itself, with a draft in turns
and with a lookup that finds something, after one text alone. Some texts hardly quote what they have read. The rate is
compared with that of the best fixed setting, with hindsight: no candidates, or as many for each text of the lookup, of
the draft, or of both, at each step.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast
from unittest.mock import patch

import numpy as np

from benchmarks.oracle import N_MAX, OFF, Case, Pair
from benchmarks.regret import options_of, percentile
from benchmarks.runner import Verdict
from benchmarks.samples import N_TOKENS, cases
from benchmarks.virtual import (
    MODE,
    Noise,
    Quotes,
    VirtualContext,
    VirtualSampler,
    VirtualVerifier,
    drafting_s,
    reading_s,
    recorded,
)
from benchmarks.virtual_clock import VirtualClock
from duo.config import SamplingConfig, StopConfig, ThreadConfig
from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import RunningText
from duo.engine.recorder import Recorder
from duo.engine.request import Ending, Request, generation_config
from duo.engine.together import Member, Together
from duo.llama.build import CPU
from duo.speculation.constants import DEFAULT
from duo.speculation.joint import JointDecodes
from duo.speculation.modes import SYNC
from duo.speculation.types import Origin, Proposal

N_TEXTS = (2, 3, 4)
LOOKED_UP, DRAFTED = (1, 2, 3, 4, 8), (1, 2, 3, 4, 6)  # candidates of fixed settings
_CELLS = 1 << 20


class Setting(NamedTuple):
    """Candidates for each text at each step; None: as the policy decides."""

    name: str
    n_lookup: int | None = None
    n_draft: int | None = None


POLICY = Setting("policy")
FIXED = (
    *(Setting(f"lookup {n}", n, 0) for n in LOOKED_UP),
    *(Setting(f"draft {n}", 0, n) for n in DRAFTED),
    *(Setting(f"both {n}", n, n) for n in DRAFTED),
)


class Text(NamedTuple):
    """What may be proposed for a text."""

    predictions: Sequence[tuple[float, bool]]  # of the draft
    quotes: int | None  # the seed of what the lookup finds; None: nothing


@dataclass(frozen=True, slots=True)
class Judged:
    name: str  # machine/pair
    n_texts: int
    quoting: int  # of them
    best: str  # fixed setting
    share: float  # rate relative to that
    over_off: float  # rate relative to no candidates


class _Noisy(JointDecodes):
    """Is told times with noise."""

    noise: ClassVar[Noise]

    def learn(
        self, n_texts: int, n_rows: int, n_read: int, n_tokens: int, seconds: float, drafted_s: float = 0.0
    ) -> None:
        super().learn(n_texts, n_rows, n_read, n_tokens, self.noise.measured(seconds), drafted_s)


class _Fixed(JointDecodes):
    """As many candidates for each text as the setting says."""

    setting: ClassVar[Setting]

    def plan(self, proposals: Sequence[Proposal], rooms: Sequence[int], n_most: int) -> list[int]:
        n_draft, n_lookup = self.setting.n_draft or 0, self.setting.n_lookup or 0
        wanted = [n_lookup if one.origin is Origin.LOOKUP else n_draft for one in proposals]
        return [
            min(n_most // len(rooms), n, room, len(one.chances))
            for n, room, one in zip(wanted, rooms, proposals, strict=True)
        ]

    def drafting(self, n_texts: int, n_rows: int, chances: Any, *_: Any) -> tuple[int, int, float]:
        del n_texts, n_rows
        return (len(chances), 1, 1e9) if chances and self.setting.n_draft else (0, 0, 0.0)


class _Shared(VirtualContext):
    """A virtual context of several texts."""

    n_texts, n_cells, flash_attn = max(N_TEXTS), _CELLS, "on"

    def __init__(self, clock: VirtualClock, case: Case, *, is_draft: bool = False) -> None:
        super().__init__(clock, case.machine)
        self._is_draft = is_draft

    def text(self, sequence: int) -> _Sequence:
        return _Sequence(self, sequence)

    def decode_parts(self, parts: Sequence[tuple[int, Sequence[int], int]]) -> list[Any]:
        self._take(self._seconds(sum(len(tokens) for _, tokens, _ in parts)))
        found = list[Any]()
        for sequence, tokens, n_rows in parts:
            self._sequences.setdefault(sequence, (0, 0))
            rows = [self.append(sequence, [token]) for token in tokens]
            found.append(np.array(rows[len(rows) - n_rows :], np.float64).reshape(n_rows, 2))
        return found

    def _seconds(self, n: int) -> float:
        machine = self._machine
        if self._is_draft and machine.branch_s and n <= len(machine.branch_s):
            return machine.draft_s * drafting_s(machine, n) / drafting_s(machine, 1)
        if self._is_draft:
            return reading_s(machine, n)
        known = machine.target_s
        slope_s = max(0.0, known[-1] - known[len(known) // 2]) / (len(known) - 1 - len(known) // 2)
        return known[min(n, len(known)) - 1] + max(0, n - len(known)) * slope_s

    def length(self, sequence: int) -> int:
        return self._sequences.get(sequence, (0, 0))[0]

    def shorten(self, sequence: int, n_past: int) -> None:
        self._sequences[sequence] = n_past, min(n_past, self._sequences.get(sequence, (0, 0))[1])

    def branch(self, sequence: int, n_past: int, of: int = 0) -> None:
        self._sequences[sequence] = n_past, min(n_past, self._sequences[of][1])


class _Sequence:
    """One of its texts."""

    n_ctx = n_batch = _CELLS
    n_vocab, n_rollback, n_branches, was_first = VirtualContext.n_vocab, None, 0, False

    def __init__(self, context: _Shared, sequence: int) -> None:
        self._context, self._sequence = context, sequence

    @property
    def n_past(self) -> int:
        return self._context.length(self._sequence)

    def rollback(self, n_past: int) -> None:
        self._context.shorten(self._sequence, n_past)


def rate_of(case: Case, pair: Pair, texts: Sequence[Text], setting: Setting) -> float:
    """Tokens/s of texts that are written together, each of about N_TOKENS."""
    clock, machine = VirtualClock(), case.machine
    pair.draft.learn_warmup(1, machine.draft_s)
    target, draft_context = _Shared(clock, case), _Shared(clock, case, is_draft=True)
    draft = LocalDraft(Cache(cast(Any, draft_context)), pair.draft)
    threads, prompt = ThreadConfig(1, 1, (1,), (1, 1)), [i % 2 for i in range(case.n_prompt)]
    slot: Any = SimpleNamespace(
        controller=pair.controller, caches=[Cache(cast(Any, target)), draft.cache], draft=draft, remote=None,
        lookup=None, drafting=SimpleNamespace(n_most=N_MAX), saved=SimpleNamespace(reserved=set()), has_head=False,
        target=SimpleNamespace(places={CPU}), threads=threads,
        cores=SimpleNamespace(decoded=lambda: False, limit=0),
    )  # fmt: skip
    _Noisy.noise, _Fixed.setting = pair.controller.noise, setting
    _Noisy.noise.disturb(machine, case.seed)
    with patch("duo.engine.together.JointDecodes", _Noisy if setting is POLICY else _Fixed):
        together = Together(slot)
    together.begin()
    total = len(texts) * N_TOKENS
    for i, text in enumerate(texts):
        decoder: Any = target.text(i) if i else target
        target._sequences[i] = (0, 0)
        target.append(i, prompt[:-1])
        request = Request(prompt, generation_config(max_tokens=2 * total, ignore_eos=True), metrics=Recorder(clock))
        ending = Ending(StopConfig(2 * total, ignore_eos=True), lambda _: b".", lambda _: False)
        sampler = VirtualSampler(recorded(text.predictions), len(prompt), 2 * total, i, DEFAULT.ranks)
        running = RunningText(
            [*prompt], ending, request.metrics, VirtualVerifier(), sampler, SamplingConfig(), target.n_vocab, mode=MODE
        )
        generation = Generation(decoder, running, threads, Proposers(pair.controller, [draft]))
        together.add(Member(request, generation, Cache(decoder), i, i), lambda _: None)
        if text.quotes is not None and setting.n_lookup != 0:
            generation._lookup = Quotes(text.quotes, len(prompt), N_MAX)
            generation.proposers = [generation._lookup]
    if setting.n_draft is not None:
        for member in together.members:
            member.n_drafted = setting.n_draft
    written = 0
    while written < total:
        together.step()
        written = sum(len(member.text.tokens) - len(prompt) for member in together.members)
    if draft_failed := next(
        (m.request.metrics.draft_error for m in together.members if m.request.metrics.draft_error), ""
    ):
        raise RuntimeError(draft_failed)
    return written / clock.now()


def judge(case: Case) -> Judged:
    branch_s = case.machine.branch_s
    if len(branch_s) > 1 and branch_s[1] >= 2 * branch_s[0]:  # not measured: as one after the other
        case = replace(case, machine=replace(case.machine, branch_s=()))
    dice = random.Random(case.seed)
    n = dice.choice(N_TEXTS)
    texts = [
        Text(case.texts[i % len(case.texts)], 10 * case.seed + i if dice.random() < 0.5 else None) for i in range(n)
    ]
    learned = case.pair((SYNC,))
    case.run(learned, case.texts[-1], N_TOKENS)
    state = learned.state()

    def rate(setting: Setting) -> float:
        return rate_of(case, case.pair(state=state), texts, setting)

    off = rate(Setting(OFF, 0, 0))
    rates = {OFF: off} | {each.name: rate(each) for each in FIXED}
    best = max(rates, key=rates.__getitem__)
    own = rate(POLICY)
    n_quoting = sum(text.quotes is not None for text in texts)
    return Judged(case.name, n, n_quoting, best, own / rates[best], own / off)


def verdicts(found: Sequence[Judged]) -> Iterator[Verdict]:
    for q, least in ((10, 0.95), (50, 0.99)):
        name = "median" if q == 50 else "10th percentile"
        yield Verdict(f"over the best fixed setting, {name}", percentile([each.share for each in found], q), least)
    unused = [each.over_off for each in found if each.best == OFF]
    yield Verdict("no candidates are best: over these, 10th percentile", percentile(unused, 10), least=0.98)


def main() -> int:
    """Print the tables and the bars. The exit status: 1 if a bar is missed."""
    options = options_of("joint", __doc__)
    chosen = [case for case in cases(options.cases, options.machines, options.seed) if not case.machine.latency_s]
    with Pool(options.jobs) as pool:
        found = list(pool.imap(judge, chosen))
    for each in sorted(found, key=lambda one: one.share) if options.verbose else ():
        rates = f"{each.share:.3f} of {each.best:10} {each.over_off:.3f} over off"
        print(f"{rates}, {each.n_texts} texts, {each.quoting} quote: {each.name}")
    print("texts  cases    least    10 %  median")
    for n in N_TEXTS:
        if shares := [each.share for each in found if each.n_texts == n]:
            figures = (min(shares), np.percentile(shares, 10), np.median(shares))
            print(f"{n:5} {len(shares):6} {' '.join(f'{each:8.3f}' for each in figures)}")
    print("best:", ", ".join(f"{name} {n}" for name, n in Counter(each.best for each in found).most_common()))
    bars = list(verdicts(found))
    print(*bars, sep="\n")
    return int(any(bar.passed is False for bar in bars))


if __name__ == "__main__":
    sys.exit(main())

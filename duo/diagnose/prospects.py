"""What a draft brings a target: forecasts from the times of decodes, measured here or given in machine files."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from duo.config import AUTO_DRAFT, MAX_BRANCHES
from duo.errors import UsageError
from duo.models.storage import MIB, read_path
from duo.speculation.constants import DEFAULT
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.forecast import Forecast
from duo.speculation.machine import Machine
from duo.speculation.modes import ALL, Schedule, fastest
from duo.speculation.target_costs import TargetCosts

Times = dict[int, float]  # seconds, by tokens in the batch
Scores = list[tuple[float, bool]]  # (confidence, accepted) of each candidate
MAX_MS = 1e9
Milliseconds: TypeAlias = Annotated[float, Meta(ge=1e-9, le=MAX_MS)]  # far less overflows in forecasts
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Table: TypeAlias = dict[Annotated[int, Meta(ge=1, le=1 << 20)], Milliseconds]  # by tokens, or by sequences
_Optional: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_MS)]


class _PairFields(msgspec.Struct, forbid_unknown_fields=True):
    target_ms: Table
    draft_ms: Milliseconds | Table
    beside_target_ms: Table | None = None
    beside_draft_ms: Milliseconds | Table | None = None
    read_ms: _Optional = 0.0
    pair_ms: _Optional = 0.0
    apart: bool = False
    aborts: bool = True
    delay_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0
    two_devices: dict[str, Annotated[float, Meta(gt=0, le=1e6)]] | None = None
    traces: str = ""
    source: str = ""
    inferred: str = ""
    assumed: list[str] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    pairs: Annotated[dict[str, _PairFields], Meta(min_length=1)]
    source: str = ""
    inferred: str = ""
    assumed: list[str] = []
    noise: Share = 0.0
    spikes: Share = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft on a machine. Times in seconds."""

    name: str
    machine_name: str
    machine: Machine  # target_s: of T(1) to T(n_max + 1)
    separate_devices: bool  # whether the draft has a device of its own
    draft_alone_s: Sequence[float]  # of one token in each of 1, 2, … MAX_BRANCHES + 1 sequences, the target idle
    two_devices: Mapping[str, float] | None  # how benchmarks/ emulates it; None: it does not
    traces: str  # name of the recorded texts
    source: str  # who measured this
    assumed: Sequence[str]  # fields that nobody has measured


def read_machine(path: Path, n_max: int = AUTO_DRAFT) -> dict[str, Pair]:
    """The pairs of a file by name, with T(1) to T(n_max + 1). Raises UsageError, which names file and field."""
    try:
        found = msgspec.json.decode(read_path(path, MIB), type=_File)
        return {name: _pair(name, found, n_max) for name in found.pairs}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # including those of msgspec and of encodings
        raise UsageError(f"{path}: not a machine file: {error}") from None


def read_pair(text: str, n_max: int = AUTO_DRAFT) -> Pair:
    """That of FILE or FILE:PAIR. Raises UsageError, also if the file has several pairs and none is named."""
    name = ""
    if not Path(text).expanduser().is_file() and ":" in text:
        text, _, name = text.rpartition(":")
    path = Path(text).expanduser()
    pairs = read_machine(path, n_max)
    if name not in pairs and (name or len(pairs) > 1):
        raise UsageError(f"{path}: add : and the name of a pair (it has: {', '.join(pairs)})")
    return pairs[name] if name else next(iter(pairs.values()))


def _pair(name: str, file: _File, n_max: int) -> Pair:
    fields = file.pairs[name]
    beside_target, beside_draft = fields.beside_target_ms, fields.beside_draft_ms
    try:
        if not (fields.apart or (beside_target and beside_draft)):
            raise ValueError("`beside_target_ms` and `beside_draft_ms` are required unless `apart` is true")
        alone_s, branch_s = _sequences(fields.draft_ms), _sequences(beside_draft or fields.draft_ms)
        target_s, beside_s = (curve(ms, n_max + 1) for ms in (fields.target_ms, beside_target or fields.target_ms))
    except ValueError as error:
        raise ValueError(f"pair {name!r}: {error}") from None
    machine = Machine(
        target_s, alone_s[0], beside_s, branch_s[0], fields.read_ms / 1000, fields.pair_ms / 1000, noise=file.noise,
        spikes=file.spikes, branch_s=branch_s, latency_s=2 * fields.delay_ms / 1000, aborts=fields.aborts,
    )  # fmt: skip
    return Pair(
        name, file.name, machine, fields.apart, alone_s, fields.two_devices,
        fields.traces, fields.source or file.source, fields.assumed or file.assumed,
    )  # fmt: skip


def _sequences(known: float | Mapping[int, float]) -> Sequence[float]:
    """By the number of sequences; from a single number: as many tokens, one after the other."""
    n = MAX_BRANCHES + 1
    return curve(known if isinstance(known, Mapping) else {1: known, n: n * known}, n)


def curve(known: Mapping[int, float], n_most: int) -> Sequence[float]:
    """Seconds for 1 to `n_most` from some of them in ms: linear between and beyond. Raises ValueError without 1."""
    if 1 not in known:
        raise ValueError("a table has no time for 1")
    ns = sorted(known)
    ms = [known[n] for n in ns]
    if ns[-1] < n_most:
        slope = (ms[-1] - ms[-2]) / (ns[-1] - ns[-2]) if len(ns) > 1 else 0.0
        ns.append(n_most)
        ms.append(ms[-1] + max(0.0, slope) * (n_most - ns[-2]))
    return tuple((np.interp(range(1, n_most + 1), ns, ms) / 1000).tolist())


# Forecasts


@dataclass(frozen=True, slots=True)
class Prospects:
    """What a pair can reach in each schedule."""

    found: dict[Schedule, Forecast]
    prepared: Forecast | None  # schedule async with prepared outcomes; None: impossible, or of unknown cost
    rates: dict[Schedule, float]  # in tokens/s, with prepared outcomes where they are faster; those that duo can run
    limit: float  # of all schedules
    best: Schedule  # the fastest one
    n_enough: int | None  # candidates with which it is within 1 % of its rate; None: it has none


def informed(
    machine: Machine, acceptance: float, n_max: int, ranks: Sequence[float] = DEFAULT.ranks, block: int = 0
) -> DraftEstimates:
    """A draft with the times of `machine`, whose candidates are all accepted with one probability; see Lookahead."""
    draft = DraftEstimates(
        TargetCosts(), n_max, 2 * n_max, separate_devices=True, branches=None, aborts=machine.aborts, block=block,
        in_turns=block > 0,
    )  # fmt: skip
    machine.teach(draft)
    state = draft.acceptance.state()
    state |= {"accepted": len(state["accepted"]) * [acceptance], "mean": acceptance}
    draft.acceptance.restore(state | {"ranks": list(ranks), "scored": DEFAULT.horizon})
    return draft


def forecasts_of(draft: DraftEstimates, *, constant: bool = False) -> dict[Schedule, Forecast]:
    """What each schedule can reach with a draft whose costs are known; `constant`: see DraftEstimates.forecasts()."""
    return {Schedule.OFF: Forecast(1 / draft.target.alone.seconds(1))} | draft.forecasts(constant=constant)


def foretell(draft: DraftEstimates, *, constant: bool, prepares: bool) -> Prospects:
    """The prospects of a draft whose costs are known. `prepares`: whether the draft may prepare outcomes."""
    draft.choose_branches(allowed=False)
    found = forecasts_of(draft, constant=constant)
    rates = {schedule: each.rate for schedule, each in found.items()}
    if draft.costs.latency_s:  # a remote draft does not take turns
        del rates[Schedule.SYNC]
    prepared = None
    if prepares:
        draft.choose_branches(allowed=True)
        prepared = draft.forecasts(constant=constant)[Schedule.ASYNC]
        rates[Schedule.ASYNC] = max(rates[Schedule.ASYNC], prepared.rate)
    best = fastest({each: rates[each] for each in (*draft.schedules, Schedule.OFF) if each in rates})
    n_enough = None
    if best is not Schedule.OFF:
        limited = []
        for n_max in range(1, draft.n_max + 1):
            other = copy(draft)
            other.n_max, other.n_ahead = n_max, 2 * n_max
            limited.append(other.forecasts(constant=constant)[best].rate)
        n_enough = next(n for n, rate in enumerate(limited, 1) if rate >= 0.99 * max(limited))
    # Bins of confidence may be worth a little more than their mean, which is all that a limit knows.
    limit = max(draft.limit(draft.acceptance.mean), *rates.values())
    return Prospects(found, prepared, rates, limit, best, n_enough)


# Measurements


@dataclass(slots=True)
class Measurements:
    """Times in seconds, by threads, and then by tokens in the batch."""

    target: dict[int, Times] = field(default_factory=dict)
    draft: dict[int, Times] = field(default_factory=dict)  # for one token, and for two; of a block draft for blocks
    # Concurrent, by threads of (target, draft): the target's times, and the draft's for one token.
    concurrent: dict[tuple[int, int], tuple[Times, float]] = field(default_factory=dict)
    # By what factor a draft's decode takes longer for one token in each of several sequences, as it was loaded.
    branches: dict[int, float] = field(default_factory=dict)
    scores: Scores = field(default_factory=list)
    n_depths: int = 1  # of candidates: see Acceptance
    block: int = 0  # see DraftEstimates
    schedules: Sequence[Schedule] = ALL  # that are possible
    aborts: bool = True  # see DraftEstimates
    doubts: str = ""  # why the times are not reliable; empty: they are

    @property
    def fastest_draft(self) -> int:
        """The number of threads with which the draft is fastest."""
        return min(self.draft, key=lambda n: self.draft[n][1])

    @property
    def acceptance(self) -> float:
        """The share of the draft's predictions that are right."""
        return sum(right for _, right in self.scores) / len(self.scores) if self.scores else 0.0

    def add_scores(self, scored: Sequence[tuple[Scores, float]]) -> None:
        """Add what Meter.score() has returned for each text; the draft's times become those of a target's token."""
        self.scores = [score for scores, _ in scored for score in scores]
        factor = sum(ratio for _, ratio in scored) / len(scored)
        self.draft = {threads: {n: factor * s for n, s in times.items()} for threads, times in self.draft.items()}
        self.concurrent = {split: (times, factor * seconds) for split, (times, seconds) in self.concurrent.items()}

    def estimates(self, n_target: int, split: tuple[int, int], n_max: int = AUTO_DRAFT) -> DraftEstimates:
        """A draft that has learned what was measured with these threads: of the target alone, and of both."""
        n_draft, alone = self.fastest_draft, self.target[n_target]
        limits, n_depths = (min(n_max, self.block or n_max), 2 * n_max, self.schedules), self.n_depths
        draft = DraftEstimates(
            TargetCosts(), *limits, draft_threads=(n_draft,), branches=None, n_depths=n_depths, block=self.block,
            aborts=self.aborts,
        )  # fmt: skip
        draft.begin("greedy", 0)
        # A concurrent decode cannot be faster, nor one of two tokens: where it seems so, the measurement is noisy.
        (concurrent, concurrent_draft_s), draft_s = self.concurrent[split], self.draft[n_draft][1]
        concurrent_draft_s, costs = max(draft_s, concurrent_draft_s), draft.costs
        for n, seconds in alone.items():
            draft.target.alone.add(n, seconds)
        for n, seconds in concurrent.items():
            draft.beside.add(n, max(seconds, alone.get(n, 0.0)))
        costs.alone.add(draft_s, n_draft)
        for n, seconds in self.draft[n_draft].items() if self.block else ():
            if 1 < n <= self.block:
                costs.alone.add(max(draft_s, seconds), n_sequences=n)
        if 2 in self.draft[n_draft] and not self.block:
            costs.alone.add_pair(max(draft_s, self.draft[n_draft][2]))
        costs.concurrent.add(concurrent_draft_s)
        for n, factor in self.branches.items():
            draft.learn_branches(n, max(1.0, factor))
        if self.scores:
            draft.learn_scores(self.scores)  # of which the last count most in a run; here all count alike
            draft.acceptance.restore(draft.acceptance.state() | {"mean": self.acceptance})
        return draft

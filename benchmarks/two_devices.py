"""Both models on hardware of their own, emulated: every schedule on every machine file that is marked for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, geometric_mean, median
from typing import Any

from benchmarks.contestants import Setup
from benchmarks.emulated import Account
from benchmarks.emulation import Emulation
from benchmarks.oracle import perfect
from benchmarks.runner import Outcome, Scenario, Verdict, mean_rate, note, prompts_of, take, verdict
from benchmarks.samples import FOLDER
from benchmarks.servers import free_port
from benchmarks.traces import N_RANKS, Trace, traced
from duo.bench.results import Range, Results, markdown_table, speed_up, spread
from duo.bench.rounds import Contestant, Prompt
from duo.config import AUTO_DRAFT, DraftConfig
from duo.diagnose.prospects import Pair, foretell, informed, read_machine, read_pair
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.loading import load
from duo.speculation.controller import Controller
from duo.speculation.modes import Schedule
from duo.speculation.types import Plan, Planned, Proposal

PLAIN, TURNS, BOTH, PREPARED = "plain", "sync", "async", "prepared"
TOLD, LIMIT = "told", "limit"  # see Measured
FIXED = "fixed k"  # taking turns with the same number of candidates in each
PROMPTS = ("code", "letter", "story", "translation")
_KS = ("1", "2", "3", "4", "6", "8", "auto")  # candidates that take turns verifies at most
_FINALISTS = 2  # of those that take turns, which run with every prompt and in every round
_N_CTX = 512
_SMALL = 1.5  # times as long for two sequences: more prepare no outcomes
_BARS = {  # by milliseconds of the target and of the draft
    (25, 8): ((BOTH, TURNS, 1.20), (BOTH, FIXED, 1.20), (PREPARED, BOTH, 1.10), (PREPARED, LIMIT, 0.78)),
    (25, 12): ((TURNS, FIXED, 0.98), (PREPARED, LIMIT, 0.79)),
    (490, 25): ((PREPARED, TURNS, 1.12), (PREPARED, FIXED, 1.12), (PREPARED, PLAIN, 2.6)),
    (303, 62): ((BOTH, TURNS, 1.25), (BOTH, FIXED, 1.25), (BOTH, PLAIN, 1.5)),
}


class FixedLength(Controller):
    """Verifies as many candidates as allowed in every step, as programs do that always take turns."""

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        drafted, (draft,) = proposals[0], self.drafts.values()  # a draft is the first proposer
        n = max(0, min(draft.n_max, texts[0].n_room - 1))
        if len(drafted.candidates) < n and drafted.next_s < math.inf:
            return Plan(proposer=0, wait_s=drafted.next_s)
        return Plan(drafted.candidates[:n], 0)


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    emulation: Emulation
    results: Results
    traces: Sequence[Trace]  # by prompt

    @property
    def acceptance(self) -> float:
        return fmean(right for trace in self.traces for _, right in trace.scores)

    def fastest(self) -> dict[str, Contestant]:
        """By mode: the fastest contestant that ran in every round."""
        runs = Counter(sample.contestant for sample in self.results.samples)
        found: dict[str, Contestant] = {}
        for mode in dict.fromkeys(contestant.mode for contestant in self.results.contestants):
            same = {contestant: n for contestant, n in runs.items() if contestant.mode == mode}
            whole = [contestant for contestant, n in same.items() if n == max(same.values())]
            found[mode] = max(whole, key=lambda each: geometric_mean(self.rates(each)))
        return found

    def rates(self, contestant: Contestant) -> list[float]:
        """By prompt: the median of the rounds."""
        rates: dict[str, list[float]] = {}
        for sample in self.results.of(contestant):
            rates.setdefault(sample.prompt.category, []).append(sample.run.tokens_per_s)
        return [median(rates[category]) for category in sorted(rates)]

    def limits(self) -> list[float]:
        """By prompt: min(1/t_d, max over k of E(k)/T(k+1)), tokens/s that no schedule exceeds."""
        machine = self.emulation.pair.machine
        ks = range(min(AUTO_DRAFT, len(machine.target_s) - 1) + 1)
        return [
            min(1 / machine.concurrent_draft_s, max(trace.expected(k) / machine.concurrent_target_s[k] for k in ks))
            for trace in self.traces
        ]

    def told(self) -> list[float]:
        """By prompt: tokens/s of a draft that is told which outcome comes true, at most the limit."""
        machine = self.emulation.pair.machine
        found = (perfect(machine, tuple(trace.scores), len(trace.scores)) for trace in self.traces)
        return list(map(min, found, self.limits()))

    def planned(self, contestant: Contestant) -> Range:
        """The forecast of `duo plan` at the acceptance that came out, over measured."""
        machine, mode, k = replace(self.emulation.pair.machine, noise=0.0), contestant.mode, contestant.n_max
        n_max = AUTO_DRAFT if k in (None, "auto") else int(k)
        ranks = [rank for trace in self.traces for rank in trace.ranks]
        shares = [ranks.count(rank) / max(1, len(ranks)) for rank in range(N_RANKS)]
        prospects = foretell(informed(machine, self.acceptance, n_max, shares), constant=True, prepares=True)
        forecast = prospects.found[{TURNS: Schedule.SYNC, PLAIN: Schedule.OFF}.get(mode, Schedule.ASYNC)]
        if mode == PREPARED and prospects.prepared is not None:
            forecast = prospects.prepared
        return Range(forecast.rate / geometric_mean(self.rates(contestant)))

    def row(self) -> dict[str, Any]:
        fastest = self.fastest()
        rates = {mode: self.rates(contestant) for mode, contestant in fastest.items()}
        rates |= {TOLD: self.told(), LIMIT: self.limits()}
        modes = list(rates)
        return {
            "machine": self.name,
            "emulated": self.emulation.facts(),
            "tokens_per_s": {mode: geometric_mean(found) for mode, found in rates.items()},
            "k": {mode: contestant.n_max for mode, contestant in fastest.items()},
            "ratios": {
                f"{a} over {b}": speed_up([x / y for x, y in zip(rates[a], rates[b], strict=True)])
                for a in modes for b in modes if a != b
            },
            "plain_over_1/T(1)": speed_up([rate * self.emulation.pair.machine.target_s[0] for rate in rates[PLAIN]]),
            "planned_over_measured": {m: self.planned(c) for m, c in fastest.items() if m != FIXED},
            "same_text": all(self.results.row(each)["same_text"] is not False for each in self.results.contestants),
            "acceptance": self.acceptance,
            "runs": self.results.document()["runs"],
        }  # fmt: skip

    def verdicts(self, row: dict[str, Any]) -> Iterator[Verdict]:
        yield Verdict(f"{self.name}: plain over 1/T(1)", row["plain_over_1/T(1)"], 0.98, 1.0)
        for mode, planned in row["planned_over_measured"].items():
            if mode != PLAIN:
                yield Verdict(f"{self.name}: planned over measured, {mode}", planned, 0.94, 1.06)
        yield verdict(f"{self.name}: every text as plain's", float(row["same_text"]), least=1.0)
        machine = self.emulation.pair.machine
        bars = _BARS.get((round(1000 * machine.target_s[0]), round(1000 * machine.draft_s)), ())
        if machine.branch_s[1] < _SMALL * machine.draft_s:
            bars += ((PREPARED, TOLD, 0.80), *(((PREPARED, FIXED, 1.40),) if self.emulation.is_far else ()))
        for first, second, least in bars:
            yield Verdict(f"{self.name}: {first} over {second}", row["ratios"].get(f"{first} over {second}"), least)


class TwoDevices(Scenario):
    """-r is the number of rounds over all prompts; --only names machine files or their pairs (machine/pair)."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario. After Ctrl-C, returns the results of the machines that are complete."""
        rows, verdicts, complete = list[dict[str, Any]](), list[Verdict](), True
        pairs = [("", read_pair(setup.machine))] if setup.machine else marked_pairs(setup.only)
        for name, pair in pairs:
            try:
                found = measured(setup, name or pair.name, pair)
            except KeyboardInterrupt:
                note("interrupted")
                complete = False
                break
            rows.append(found.row())
            verdicts += found.verdicts(rows[-1])
        return Outcome(lines(rows), {"complete": complete, "machines": rows}, verdicts)


def marked_pairs(only: Sequence[str] = ()) -> Iterator[tuple[str, Pair]]:
    """The pairs of the machine files that are marked with `two_devices`, or those whose names begin with `only`."""
    for path in sorted(FOLDER.glob("*.json")):
        for pair in read_machine(path).values():
            name = f"{path.stem}/{pair.name}"
            if pair.two_devices is not None and (not only or name.startswith(tuple(only))):
                yield name, pair


def measured(setup: Setup, name: str, pair: Pair) -> Measured:
    """All contestants on one pair. Raises DuoError, KeyboardInterrupt."""
    emulation, port = Emulation(pair, Account(1.0)), free_port()
    prompts = prompts_of(setup)
    prompts = [prompt for prompt in prompts if prompt.category in PROMPTS] or prompts
    with ExitStack() as stack:
        engine = stack.enter_context(
            load(setup.target, setup.draft, n_ctx=_N_CTX, n_threads=1, draft_n_threads=1, draft_n_max=AUTO_DRAFT,
                 exact=True, profile=False, back_port=port if emulation.is_far else None)
        )  # fmt: skip
        engine.call(lambda slot: slot.reserve(0, _N_CTX))
        texts = [engine.tokenize(prompt.text) for prompt in prompts]
        found = [engine.call(partial(traced, prompt=text, n_tokens=setup.n_tokens)) for text in texts]
        least = (pair.two_devices or {}).get("slow_down", 0.0)
        engine.call(partial(emulation.choose, least=least))
        note(f"{name}: all times multiplied by {emulation.account.slow_down:g}")
        engine.call(emulation.install)
        compared = contestants(engine, emulation, likely_ks(found, emulation))
        if emulation.is_far:
            compared += emulation.far({BOTH: 0, PREPARED: None}, engine, setup, port, stack)
        results = Results(compared)
        take_all(results, prompts, setup)
        return Measured(name, emulation, results, found)


def take_all(results: Results, prompts: Sequence[Prompt], setup: Setup) -> None:
    """All contestants with the first prompt; with the others only the fastest of those that take turns."""
    everybody = results.contestants
    complete = take(results, prompts[:1], setup, warm_up=True)
    turns = [contestant for contestant in everybody if contestant.mode == TURNS]
    turns.sort(key=lambda contestant: mean_rate(results, contestant), reverse=True)
    results.contestants = [contestant for contestant in everybody if contestant not in turns[_FINALISTS:]]
    complete = complete and take(results, (list(prompts) * setup.n_rounds)[1:], setup)
    results.contestants = everybody
    if not complete:
        raise KeyboardInterrupt


def likely_ks(traces: Sequence[Trace], emulation: Emulation) -> list[int]:
    """The fixed numbers of candidates that are the fastest with these texts, by T(n), t_d and what is accepted."""
    machine = emulation.pair.machine

    def rate(k: int) -> float:
        seconds = k * machine.draft_s + machine.latency_s + machine.target_s[k]
        return math.prod(trace.expected(k) / seconds for trace in traces)

    return sorted(range(1, AUTO_DRAFT + 1), key=rate, reverse=True)[:_FINALISTS]


def contestants(engine: Engine, emulation: Emulation, ks: Sequence[int]) -> list[Contestant]:
    """Plain, taking turns with at most or always k candidates (`ks`), both at once, and outcomes prepared."""

    def with_draft(
        mode: str, k: str, schedule: str, branches: int | None, kind: type[Controller] = Controller
    ) -> Contestant:
        n = AUTO_DRAFT if k == "auto" else int(k)
        drafting = DraftConfig(n, 2 * n, schedule, branches)
        proposers = engine.call(lambda slot: emulation.with_draft(slot, drafting, kind))
        return Contestant(mode, partial(emulation.write, engine, proposers), n_max=k)

    found = [Contestant(PLAIN, partial(emulation.write, engine, Proposers()))]
    found += [with_draft(TURNS, k, TURNS, 0) for k in _KS]
    found += [with_draft(FIXED, str(k), TURNS, 0, FixedLength) for k in ks]
    if not emulation.is_far:
        found += [with_draft(BOTH, "auto", BOTH, 0), with_draft(PREPARED, "auto", BOTH, None)]
    return found


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Two tables: rates, and what predictions and Python have to do with them."""
    pairs = [f"{BOTH} over {FIXED}", f"{BOTH} over {TURNS}", f"{PREPARED} over {BOTH}", f"{PREPARED} over {PLAIN}",
             f"{PREPARED} over {TOLD}", f"{PREPARED} over {LIMIT}"]  # fmt: skip
    modes, plans = (PLAIN, FIXED, TURNS, BOTH, PREPARED, TOLD, LIMIT), (TURNS, BOTH, PREPARED)
    rates = [["machine", "S", *modes, *pairs]]
    checks = [["machine", "plain × T(1)", *(f"plan, {mode}" for mode in plans), "texts as plain"]]
    for row in rows:
        k = {mode: f" (k={row['k'][mode]})" for mode in (FIXED, TURNS) if mode in row["k"]}
        found = row["tokens_per_s"]
        cells = [f"{found[mode]:.2f}{k.get(mode, '')}" if mode in found else "" for mode in modes]
        rates.append(
            [
                row["machine"],
                f"{row['emulated']['slow_down']:g}",
                *cells,
                *(spread(row["ratios"].get(pair), 2) for pair in pairs),
            ]
        )
        planned = [spread(row["planned_over_measured"].get(mode), 2) for mode in plans]
        same = "yes" if row["same_text"] else "no"
        checks.append([row["machine"], spread(row["plain_over_1/T(1)"], 3), *planned, same])
    return [
        "Devices are emulated, with all times multiplied by S: see docs/comparison.md. Tokens/s: geometric means over "
        "the prompts of the medians of the rounds; ratios by prompt (95 % t interval).",
        "", *markdown_table(rates),
        "", "Predicted over measured rates.",
        "", *markdown_table(checks),
    ]  # fmt: skip

"""Both models on hardware of their own, emulated: every schedule on every machine file that is marked for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean, median
from typing import Any

from benchmarks.contestants import Setup
from benchmarks.measure import Outcome, Scenario, Verdict, mean_rate, note
from benchmarks.predicted_texts import N_RANKS, Trace, traced
from benchmarks.regret import FOLDER
from duo.bench import formats
from duo.bench.contestant import PLAIN, PREPARED, Contestant
from duo.bench.emulation import Emulation
from duo.bench.lineup import own_modes
from duo.bench.machines import Pair, read_machine
from duo.bench.modes import ChooseDrafts, InProcess
from duo.bench.prompts import Prompt
from duo.bench.results import Results
from duo.bench.rounds import Sample
from duo.bench.rounds import measure as take_samples
from duo.bench.statistics import Range, speed_up
from duo.cli.commands.plan import foretell, informed
from duo.config import AUTO_DRAFT, DraftConfig
from duo.engine.engine import Engine
from duo.engine.slot import Drafts
from duo.loading import load
from duo.spec.lookup import Lookup
from duo.spec.policy import Decision, Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Guesses, recorded, replay

TURNS, BOTH = "sync", "async"
FIXED = "fixed k"  # taking turns with the same number of candidates in each
PROMPTS = ("code", "letter", "story", "translation")
_KS = ("1", "2", "3", "4", "6", "8", "auto")  # candidates that take turns verifies at most
_FINALISTS = 2  # of those that take turns, which run with every prompt and in every round
_N_CTX = 512


class FixedLength(Policy):
    """Verifies as many candidates as allowed in every step, as programs do that take turns without a policy."""

    def decide(
        self, confidences: Sequence[float], n_room: int, next_s: float, _: Lookup | None = None, __: int | None = None
    ) -> Decision:
        """See Policy."""
        n = max(0, min(self.n_max, n_room - 1))
        if len(confidences) < n and next_s < math.inf:
            return Decision(0, next_s)
        return Decision(min(len(confidences), n))


@dataclass(frozen=True, slots=True)
class Measured:
    """The results on one emulated pair."""

    name: str
    emulation: Emulation
    results: Results
    traces: Sequence[Trace]  # by prompt

    @property
    def pair(self) -> Pair:
        """The emulated pair."""
        return self.emulation.pair

    def contestant(self, mode: str) -> Contestant | None:
        """The fastest of this mode that ran in every round; None if there is none."""
        found = [c for c in self.results.contestants if c.mode == mode]
        n_most = max((len(self.results.of(each)) for each in found), default=0)
        found = [each for each in found if len(self.results.of(each)) == n_most > 0]
        return max(found, key=lambda each: geometric_mean(self.rates(each)), default=None)

    def rates(self, contestant: Contestant) -> list[float]:
        """Tokens/s by prompt: medians of the rounds."""
        found = [self.results.of(contestant, category) for category in self.results.categories]
        return [median(sample.run.tokens_per_s for sample in samples) for samples in found if samples]

    def ratio(self, mode: str, over: str) -> Range | None:
        """By prompt, as a geometric mean with its interval."""
        first, second = self.contestant(mode), self.contestant(over)
        if first is None or second is None:
            return None
        return speed_up([a / b for a, b in zip(self.rates(first), self.rates(second), strict=True)])

    def limits(self) -> list[float]:
        """By prompt: min(1/t_d, max over k of E(k)/T(k+1)), tokens/s that no schedule exceeds."""
        machine = self.pair.machine
        ks = range(min(AUTO_DRAFT, len(machine.target_s) - 1) + 1)
        return [
            min(1 / machine.beside_draft_s, max(trace.expected(k) / machine.beside_target_s[k] for k in ks))
            for trace in self.traces
        ]

    def of_limit(self, mode: str) -> Range | None:
        """The share of the limit that a mode reaches."""
        found = self.contestant(mode)
        return (
            None
            if found is None
            else speed_up([rate / most for rate, most in zip(self.rates(found), self.limits(), strict=True)])
        )

    def planned(self, mode: str) -> Range | None:
        """The forecast of `duo plan` at the acceptance that came out, over measured."""
        found, machine = self.contestant(mode), replace(self.pair.machine, noise=0.0)
        if found is None:
            return None
        acceptance = fmean(right for trace in self.traces for _, right in trace.scores)
        n_max = AUTO_DRAFT if found.n_max in (None, "auto") else int(found.n_max or 0)
        prospects = foretell(informed(machine, acceptance, max(1, n_max), self._shares()), constant=True, prepares=True)
        forecast = prospects.found[{TURNS: Schedule.SYNC, PLAIN: Schedule.OFF}.get(mode, Schedule.ASYNC)]
        if mode == PREPARED and prospects.prepared is not None:
            forecast = prospects.prepared
        return Range(forecast.rate / geometric_mean(self.rates(found)), None, None)

    def replayed(self, mode: str) -> Range | None:
        """The same from the draft's predictions in each text, by prompt."""
        found = self.contestant(mode)
        if found is None:
            return None
        policy, rates = self._policy(found), list[float]()
        for _ in range(self.results.n_rounds // len(self.traces) or 1):  # it learns as that of the contestant did
            rates = [
                self._simulated(found, policy, recorded(trace.scores), len(trace.scores), trace.n_prompt)
                for trace in self.traces
            ]
        return speed_up([a / b for a, b in zip(rates, self.rates(found), strict=True)])

    def _policy(self, contestant: Contestant) -> Policy:
        """A new policy as the contestant had one."""
        n_max = AUTO_DRAFT if contestant.n_max in (None, "auto") else int(contestant.n_max or 0)
        mode, pair = contestant.mode, self.pair
        schedule = {TURNS: Schedule.SYNC, PLAIN: Schedule.OFF}.get(mode, Schedule.ASYNC)
        return Policy(
            n_max,
            2 * n_max,
            (schedule,),
            remote=self.emulation.is_far and schedule is Schedule.ASYNC,
            apart=pair.apart,
            branches=None if mode == PREPARED else 0,
            aborts=pair.aborts,
        )

    def _shares(self) -> list[float]:
        """Of each rank, how often the target's token was the alternative of this rank to a wrong one."""
        ranks = [rank for trace in self.traces for rank in trace.ranks]
        return [ranks.count(rank) / max(1, len(ranks)) for rank in range(N_RANKS)]

    def _simulated(
        self, contestant: Contestant, policy: Policy, guesses: Guesses, n_tokens: int, n_prompt: int = 1
    ) -> float:
        """Tokens/s. Taking turns costs a round trip before each verification of candidates."""
        machine, trip_s = replace(self.pair.machine, noise=0.0), 0.0
        if contestant.mode == TURNS:
            machine, trip_s = replace(machine, latency_s=0.0), machine.latency_s
        found = replay(policy, machine, guesses, n_tokens, n_prompt, ranks=self._shares())
        return found.tokens / (found.seconds + trip_s * sum(k > 0 for k in found.n_verified))

    def row(self) -> dict[str, Any]:
        """The figures as JSON types."""
        turns, fixed = self.contestant(TURNS), self.contestant(FIXED)
        modes = [mode for mode in (PLAIN, FIXED, TURNS, BOTH, PREPARED) if self.contestant(mode) is not None]
        fastest = {mode: self.contestant(mode) for mode in modes}
        return {
            "machine": self.name,
            "tokens_per_s": {m: geometric_mean(self.rates(c)) for m, c in fastest.items() if c is not None},
            "limit_tokens_per_s": geometric_mean(self.limits()),
            "turns_k": turns and turns.n_max,
            "fixed_k": fixed and fixed.n_max,
            "ratios": {
                f"{first} over {second}": self.ratio(first, second)
                for i, second in enumerate(modes)
                for first in modes[i + 1 :]
            },
            "of_limit": {mode: self.of_limit(mode) for mode in modes},
            "plain_over_1/T(1)": self.plain_over_device(),
            "planned_over_measured": {mode: self.planned(mode) for mode in modes if mode != FIXED},
            "replayed_over_measured": {mode: self.replayed(mode) for mode in modes if mode != FIXED},
            "draft_us_per_decode": {
                m: self.results.row(c)["draft_us_per_decode"] for m, c in fastest.items() if c is not None
            },
            "engine_us_per_step": {
                m: self.results.row(c)["engine_us_per_step"] for m, c in fastest.items() if c is not None
            },
            "same_text": self.same_text,
            "acceptance": fmean(right for trace in self.traces for _, right in trace.scores),
            "ranks": [rank for trace in self.traces for rank in trace.ranks],
        }

    @property
    def same_text(self) -> bool:
        """Whether every text is that of plain decoding."""
        return all(self.results.row(each)["same_text"] is not False for each in self.results.contestants)

    def plain_over_device(self) -> Range | None:
        """The measured rate of plain decoding over 1/T(1)."""
        found = self.contestant(PLAIN)
        return None if found is None else speed_up([rate * self.pair.machine.target_s[0] for rate in self.rates(found)])

    def verdicts(self) -> Iterator[Verdict]:
        """The bars."""
        yield Verdict(f"{self.name}: plain over 1/T(1)", self.plain_over_device(), 0.98, 1.0)
        for mode in (TURNS, BOTH, PREPARED):
            if self.contestant(mode) is not None:
                yield Verdict(f"{self.name}: planned over measured, {mode}", self.planned(mode), 0.95, 1.05)
        yield Verdict(f"{self.name}: every text as plain's", Range(float(self.same_text), None, None), 1.0)
        for first, second, least in _BARS.get(self._kind, ()):
            figure = self.of_limit(first) if second == "limit" else self.ratio(first, second)
            yield Verdict(f"{self.name}: {first} over {second}", figure, least)

    @property
    def _kind(self) -> tuple[int, int]:
        """Milliseconds of the target and of the draft; (0, 0) for two machines."""
        machine = self.pair.machine
        return (0, 0) if self.emulation.is_far else (round(1000 * machine.target_s[0]), round(1000 * machine.draft_s))


_BARS = {
    (25, 8): ((BOTH, TURNS, 1.20), (BOTH, FIXED, 1.20), (PREPARED, BOTH, 1.10), (PREPARED, "limit", 0.75)),
    (25, 12): ((TURNS, FIXED, 0.98),),
    (490, 25): ((PREPARED, TURNS, 1.12), (PREPARED, FIXED, 1.12), (PREPARED, PLAIN, 2.6)),
    (0, 0): ((BOTH, TURNS, 1.25), (BOTH, FIXED, 1.25), (BOTH, PLAIN, 1.5)),
}


class TwoDevices(Scenario):
    """-r is the number of rounds over all prompts; --only names machine files or their pairs (machine/pair)."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario. After Ctrl-C, returns the results of the machines that are complete."""
        found: list[Measured] = []
        complete = True
        for name, pair in marked_pairs(setup.only):
            note(f"{name}, {pair.slow_down:g} times slower")
            try:
                found.append(measured(setup, name, pair))
            except KeyboardInterrupt:
                note("interrupted")
                complete = False
                break
        rows = [each.row() for each in found]
        for row, each in zip(rows, found, strict=True):
            row |= {"emulated": each.emulation.facts(), "runs": [formats.run_line(s) for s in each.results.samples]}
        verdicts = [verdict for each in found for verdict in each.verdicts()]
        return Outcome(lines(rows), {"complete": complete, "machines": rows}, verdicts)


def marked_pairs(only: Sequence[str] = ()) -> Iterator[tuple[str, Pair]]:
    """The pairs of the machine files that are marked with `two_devices`, or those whose names begin with `only`."""
    for path in sorted(FOLDER.glob("*.json")):
        for pair in read_machine(path).values():
            name = f"{path.stem}/{pair.name}"
            if pair.slow_down is not None and (not only or name.startswith(tuple(only))):
                yield name, pair


def measured(setup: Setup, name: str, pair: Pair) -> Measured:
    """All contestants on one pair. Raises DuoError, KeyboardInterrupt."""
    emulation = Emulation(pair, pair.slow_down or 1.0)
    files = [file for file in setup.prompt_files if file.stem in PROMPTS] or setup.prompt_files
    prompts = [Prompt(file.stem, file.read_text(encoding="utf-8").strip()) for file in files]
    with ExitStack() as stack:
        engine = stack.enter_context(
            load(setup.target, setup.draft, n_ctx=_N_CTX, n_threads=1, draft_n_threads=1, draft_n_max=AUTO_DRAFT,
                 exact=True, profile=False)
        )  # fmt: skip
        engine.call(lambda slot: slot.reserve(0, _N_CTX))
        found = [trace_of(engine, prompt.text, setup.n_tokens) for prompt in prompts]
        results = Results(contestants(engine, emulation, stack, likely_ks(found, emulation)))
        take_all(results, prompts, setup)
        return Measured(name, emulation, results, found)


def take_all(results: Results, prompts: Sequence[Prompt], setup: Setup) -> None:
    """All contestants with the first prompt; with the others only the fastest of those that take turns.

    Those with a fixed k are in `results` only if they can be the fastest: see likely_ks().
    """
    n_shift = 0

    def put(sample: Sample) -> None:
        results.add(replace(sample, i_round=sample.i_round + n_shift))
        note(formats.progress(results.samples[-1], results, setup.n_rounds * len(prompts)))

    never = threading.Event()
    take_samples(results.contestants, prompts[:1], setup.job, put, note, never)
    turns = [contestant for contestant in results.contestants if contestant.mode == TURNS]
    turns.sort(key=lambda contestant: mean_rate(results, contestant), reverse=True)
    kept = [contestant for contestant in results.contestants if contestant not in turns[_FINALISTS:]]
    n_shift = 1
    take_samples(kept, (list(prompts) * setup.n_rounds)[1:], setup.job, put, note, never, warm_up=False)


def trace_of(engine: Engine, prompt: str, n_tokens: int) -> Trace:
    """See traced()."""
    return engine.call(lambda slot: traced(slot, engine.tokenize(prompt), n_tokens))


def likely_ks(traces: Sequence[Trace], emulation: Emulation) -> list[str]:
    """The fixed numbers of candidates that are the fastest with these texts, by T(n), t_d and what is accepted."""
    machine = emulation.pair.machine

    def rate(k: int) -> float:
        seconds = k * machine.draft_s + machine.latency_s + machine.target_s[k]
        return math.prod(trace.expected(k) / seconds for trace in traces)

    return [str(k) for k in sorted(range(1, AUTO_DRAFT + 1), key=rate, reverse=True)[:_FINALISTS]]


def contestants(engine: Engine, emulation: Emulation, stack: ExitStack, ks: Sequence[str] = ()) -> list[Contestant]:
    """Plain, taking turns with at most or always k candidates, both at once, and outcomes prepared.

    `ks`: those of a fixed length. On another machine a draft prepares no outcomes.
    """
    auto = {"auto": DraftConfig(AUTO_DRAFT, 2 * AUTO_DRAFT)}
    turns = {k: DraftConfig(int(k), 2 * int(k)) for k in _KS if k != "auto"} | auto
    modes = [mode for mode in (BOTH, PREPARED) if mode not in emulation.impossible_modes]
    found = own_modes(engine, [PLAIN], auto, stack, emulation)
    found += own_modes(engine, [TURNS], turns, stack, emulation)
    for k in ks:
        found.append(Contestant(FIXED, InProcess(engine, fixed(engine, emulation, k), emulation), n_max=k))
    return found + own_modes(engine, modes, auto, stack, emulation)


def fixed(engine: Engine, emulation: Emulation, k: str) -> ChooseDrafts:
    """A draft that takes turns with always `k` candidates."""
    drafting = DraftConfig(int(k), 2 * int(k), TURNS, 0)
    draft = engine.slot.new_draft(engine.call(lambda slot: emulation.new_policy(slot, drafting, FixedLength)))
    return lambda _: Drafts(draft)


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Two tables: rates, and what predictions and Python have to do with them."""
    heading = ["machine", "plain", "fixed k", "taking turns", "both at once", "outcomes prepared", "limit",
               "both over fixed k", "both over turns", "prepared over both", "prepared over plain",
               "prepared of the limit"]  # fmt: skip
    predicted = [f"{what}, {mode}" for what in ("plan", "replay") for mode in (TURNS, BOTH, PREPARED)]
    rates = [heading]
    checks = [["machine", "plain × T(1)", *predicted, "engine µs", "draft's µs", "texts as plain"]]
    for row in rows:
        figures, ratios = row["tokens_per_s"], row["ratios"]
        turns = f"{figures[TURNS]:.2f} (k={row['turns_k']})" if TURNS in figures else ""
        fixed_k = f"{figures[FIXED]:.2f} (k={row['fixed_k']})" if FIXED in figures else ""
        rates.append([
            row["machine"], _number(figures.get(PLAIN)), fixed_k, turns, _number(figures.get(BOTH)),
            _number(figures.get(PREPARED)), _number(row["limit_tokens_per_s"]),
            *(formats.spread(ratios.get(f"{first} over {second}"), 2)
              for first, second in ((BOTH, FIXED), (BOTH, TURNS), (PREPARED, BOTH), (PREPARED, PLAIN))),
            formats.spread(row["of_limit"].get(PREPARED), 2),
        ])  # fmt: skip
        checks.append([
            row["machine"], formats.spread(row["plain_over_1/T(1)"], 3),
            *(formats.spread(row[f"{what}_over_measured"].get(mode), 2)
              for what in ("planned", "replayed") for mode in (TURNS, BOTH, PREPARED)),
            ", ".join(f"{mode} {us:.0f}" for mode, us in row["engine_us_per_step"].items() if us is not None),
            ", ".join(f"{mode} {us:.0f}" for mode, us in row["draft_us_per_decode"].items() if us is not None),
            "yes" if row["same_text"] else "no",
        ])  # fmt: skip
    return [
        "Devices are emulated: see docs/comparison.md. Tokens/s: geometric means over the prompts of the medians of "
        "the rounds; ratios by prompt (95 % t interval).",
        "", *formats.markdown_table(rates),
        "", "Predicted over measured rates, and processor time of Python per decode of the target.",
        "", *formats.markdown_table(checks),
    ]  # fmt: skip


def _number(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2f}"

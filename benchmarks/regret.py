"""Judges the policy in virtual time: its regret on recorded machines, with recorded texts.

python -m benchmarks.regret [MACHINE...] [-n TOKENS...] [-s SEEDS] [--set NAME=VALUE]... [-v]

Regret is the time of the policy over that of the best fixed schedule, chosen with hindsight: it knows the costs and how
often the draft is right in this text. Each text is generated *cold*, by a policy that knows nothing, and *warm*, after
two other texts of the same pair, through state() and restore() as between two runs. A seed is one sequence of
disturbances of the times that the policy measures.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import Verdict
from duo.bench.machines import read_machine
from duo.bench.statistics import Range, middle_and_quartiles
from duo.spec.constants import DEFAULT, PolicyConfig
from duo.spec.costs import Calibration
from duo.spec.policy import Policy
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Guesses, Machine, Replay, recorded, replay

FOLDER = Path(__file__).parent / "machines"
N_MAX, N_AHEAD = 16, 32
N_PROMPT = 40  # tokens
N_TOKENS = 128  # of the texts that the bars are for
WON = 1.01  # rate of the best schedule over the target alone from which speculation wins
_MODE = "greedy"  # as in duo.spec.simulate
_SURELY = 50  # measurements that leave no doubt
LETTERS = "abcdefghi"  # of the bins of confidence in a trace
_GAPS = [(low + high) / 2 for low, high in zip((0.0, *Calibration.EDGES), (*Calibration.EDGES, 8.0), strict=True)]


@dataclass(frozen=True, slots=True)
class Case:
    """A pair on a machine, and the predictions of its draft in each text."""

    name: str  # machine/pair
    machine: Machine
    texts: tuple[Guesses, ...]
    apart: bool  # whether the draft has a device of its own
    config: PolicyConfig

    def policy(self, schedules: Sequence[Schedule] = ALL, state: dict[str, Any] | None = None) -> Policy:
        """A policy that knows nothing, or what an earlier one had learned: its state() passes through JSON."""
        machine = self.machine
        made = Policy(
            N_MAX,
            N_AHEAD,
            schedules,
            remote=machine.latency_s > 0,
            apart=self.apart,
            branches=None,
            aborts=machine.aborts,
            config=self.config,
        )
        if state is not None:
            made.restore(json.loads(json.dumps(state)))
        return made

    def replay(self, policy: Policy, text: int, n_tokens: int, seed: int) -> Replay:
        """Generate one of the texts, or the same with other disturbances."""
        guesses = self.texts[text % len(self.texts)]
        return replay(policy, self.machine, guesses, n_tokens, N_PROMPT, seed=1000 * seed + text)

    def known(self, schedule: Schedule, text: int, n_tokens: int) -> Policy:
        """A policy with one schedule that knows all costs, and how often this text's candidates are accepted."""
        made, machine = self.policy((schedule,)), self.machine
        made.begin(N_PROMPT, mode=_MODE)
        scores = [self.texts[text](i) for i in range(n_tokens)]
        made.learn_scores(random.Random(0).sample(scores, n_tokens))  # in any order: the text does not change
        made.learn_draft(N_PROMPT, N_PROMPT * machine.read_s)
        alone, beside = (machine.target_s, machine.draft_s), (machine.beside_target_s, machine.beside_draft_s)
        for costs, (target_s, draft_s) in ((made.alone, alone), (made.beside, beside)):
            for _ in range(_SURELY):
                costs.add_draft(draft_s)
                for n, seconds in enumerate(target_s, 1):
                    costs.add_target(n, seconds)
            for n, seconds in enumerate(machine.branch_s[1:], 2):
                made.beside.add_draft(seconds, n_sequences=n)
        return made

    def fixed(self, text: int, n_tokens: int) -> tuple[Schedule, float, float]:
        """The best schedule with hindsight, and its rates in the whole text and in the second half."""
        exact = replace(self, machine=replace(self.machine, noise=0.0))
        alone = 1 / self.machine.target_s[0]
        found = [(Schedule.OFF, alone, alone)]
        for schedule in [Schedule.ASYNC] if self.machine.latency_s else [Schedule.SYNC, Schedule.ASYNC]:
            run = exact.replay(self.known(schedule, text, n_tokens), text, n_tokens, 0)
            found.append((schedule, run.rate, late(run)))
        return max(found, key=lambda each: each[1])


@dataclass(frozen=True, slots=True)
class Regret:
    """The result of one text with one seed. Rates are relative to the target alone."""

    case: str
    text: int
    n_tokens: int
    best: Schedule
    gain: float  # rate of the best fixed schedule
    cold: float  # rate
    late: float  # of the second half, cold
    best_late: float  # of the second half, with the best fixed schedule
    warm: float
    policies: tuple[Policy, Policy] = field(repr=False)  # cold and warm, after the text

    @property
    def won(self) -> bool:
        """Whether speculation wins."""
        return self.gain >= WON

    @property
    def late_over_bar(self) -> float:
        """The rate of the second half, cold, over 1 + 0.8 (gain - 1)."""
        return self.late / (1 + 0.8 * (self.gain - 1))

    @property
    def warm_over_gain(self) -> float:
        """The rate of the whole text, warm, over that of the best fixed schedule."""
        return self.warm / self.gain


def cases(machines: Sequence[str] = (), config: PolicyConfig = DEFAULT, n_texts: int | None = None) -> Iterator[Case]:
    """All pairs on the named machines, or on all, with at most `n_texts` texts each."""
    for path in sorted(FOLDER.glob("*.json")):
        if machines and path.stem not in machines:
            continue
        for pair in read_machine(path, N_MAX).values():
            if pair.traces:
                found = texts(pair.traces)[:n_texts]
                yield Case(f"{path.stem}/{pair.name}", pair.machine, found, pair.apart, config)


def texts(name: str) -> tuple[Guesses, ...]:
    """The recorded texts of a pair: see benchmarks/traces.py."""
    document = json.loads((FOLDER / "traces" / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(recorded([(_GAPS[LETTERS.index(c.lower())], c.isupper()) for c in text]) for text in document.values())


def judge(case: Case, n_tokens: int, n_seeds: int) -> Iterator[Regret]:
    """Every text of a case with each seed."""
    numbers, alone_s = range(len(case.texts)), case.machine.target_s[0]
    fixed = [case.fixed(text, n_tokens) for text in numbers]
    for seed in range(n_seeds):
        cold = [case.policy() for _ in numbers]
        runs = [case.replay(cold[text], text, n_tokens, 3 * seed + 1) for text in numbers]
        second = [case.policy(state=cold[text - 1].state()) for text in numbers]
        for text in numbers:
            case.replay(second[text], text, n_tokens, 3 * seed + 2)
        for text, (best, best_rate, best_late) in enumerate(fixed):
            warm = case.policy(state=second[text - 1].state())
            yield Regret(
                case.name,
                text,
                n_tokens,
                best,
                gain=alone_s * best_rate,
                cold=alone_s * runs[text].rate,
                late=alone_s * late(runs[text]),
                best_late=alone_s * best_late,
                warm=alone_s * case.replay(warm, text, n_tokens, 3 * seed + 3).rate,
                policies=(cold[text], warm),
            )


def late(run: Replay) -> float:
    """The rate of the second half."""
    tokens, seconds = run.ends[bisect_left(run.ends, (run.tokens // 2, 0.0))]
    return (run.tokens - tokens) / (run.seconds - seconds)


def verdicts(found: Sequence[Regret]) -> list[Verdict]:
    """The bars, which are for texts of N_TOKENS."""
    off, won = [r for r in found if not r.won], [r for r in found if r.won]
    cold, warm = [1 / r.cold for r in off], [1 / r.warm for r in off]
    return [
        Verdict("off is best: time over off, cold, median", middle_and_quartiles(cold), most=1.02),
        Verdict("off is best: time over off, cold, 95th percentile", percentile(cold), most=1.05),
        Verdict("off is best: time over off, warm, median", middle_and_quartiles(warm), most=1.01),
        Verdict("off is best: time over off, warm, 95th percentile", percentile(warm), most=1.03),
        Verdict(
            "speculation wins g: rate of the second half, cold, over 1 + 0.8 (g - 1), median",
            middle_and_quartiles([r.late_over_bar for r in won]),
            least=1.0,
        ),
        Verdict(
            "speculation wins g: rate warm over g, median",
            middle_and_quartiles([r.warm_over_gain for r in won]),
            least=0.97,
        ),
    ]


def percentile(values: Sequence[float]) -> Range | None:
    """The 95th percentile."""
    return Range(float(np.percentile(values, 95)), None, None) if values else None


HEADER = f"{'':36} best           gain (range)      regret cold (95 %)  warm (95 %)    late met  (best)  warm met"


def row(found: Sequence[Regret]) -> str:
    """The line of a case. Regrets in per cent; the share of texts that meet the bars, where speculation wins."""
    gains = [r.gain for r in found]
    cold, warm = ([100 * (r.gain / rate - 1) for r, rate in zip(found, rates, strict=True)]
                  for rates in ([r.cold for r in found], [r.warm for r in found]))  # fmt: skip
    line = (
        f"{found[0].case:36} {'/'.join(sorted({r.best.value for r in found})):14}"
        f" {median(gains):.2f} ({min(gains):.2f}-{max(gains):.2f})"
        f" {median(cold):12.1f} ({np.percentile(cold, 95):5.1f}) {median(warm):5.1f} ({np.percentile(warm, 95):5.1f})"
    )
    return f"{line} {shares([r for r in found if r.won])}"


def shares(won: Sequence[Regret]) -> str:
    """Of texts where speculation wins: those that meet the bar of the second half, also with hindsight, and of warm."""
    if not won:
        return ""
    least = [1 + 0.8 * (r.gain - 1) for r in won]
    met = (
        [r.late >= bar for r, bar in zip(won, least, strict=True)],
        [r.best_late >= bar for r, bar in zip(won, least, strict=True)],
        [r.warm_over_gain >= 0.97 for r in won],
    )
    return " ".join(f"{100 * sum(each) / len(each):8.0f} %" for each in met)


def details(found: Regret) -> str:
    """What the policy did in one text, and what it had learned by the end."""
    lines = [f"  text {found.text}: {found.best.value} {found.gain:.3f}"]
    for name, rate, made in zip(("cold", "warm"), (found.cold, found.warm), found.policies, strict=True):
        changes = ", ".join(f"{c.n_tokens} {c.schedule.value} ({c.reason[:40]})" for c in made.chooser.changes)
        outlooks = ", ".join(f"{s.value} {o.rate:.1f} ({o.low:.1f}-{o.high:.1f})" for s, o in made.outlooks().items())
        accepted = f"{made.calibration.mean:.2f} ± {made.calibration.sd:.2f}"
        lines.append(f"    {name} {rate / found.gain:.3f}: {changes or 'no change'}; {accepted}; {outlooks}")
    return "\n".join(lines)


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, for a PolicyConfig. Raises ValueError."""
    name, _, value = text.partition("=")
    if name not in {each.name for each in fields(PolicyConfig)}:
        raise ValueError(f"no constant {name}")
    found = json.loads(value)
    return name, tuple(found) if isinstance(found, list) else found


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.regret", description=(__doc__ or "").splitlines()[0])
    add = found.add_argument
    add("machines", nargs="*", metavar="MACHINE", help=f"files in {FOLDER.name}, without .json (default: all)")
    add(
        "-n",
        "--n-tokens",
        type=int,
        nargs="+",
        default=[N_TOKENS],
        metavar="N",
        help="lengths of the texts (default: 128)",
    )
    add("-s", "--seeds", type=int, default=1, metavar="N", help="seeds per text (default: 1)")
    add(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constant of the policy, as JSON",
    )
    add("-v", "--verbose", action="store_true", help="print what the policy did in each text")
    options = found.parse_args()
    if unknown := set(options.machines) - {path.stem for path in FOLDER.glob("*.json")}:
        found.error(f"no file {FOLDER.name}/{unknown.pop()}.json")
    return options


def main() -> int:
    """Print the regret of each pair, and the bars. The exit status: 1 if one is missed with texts of N_TOKENS."""
    options = parse_options()
    config = replace(DEFAULT, **dict(options.set))
    missed = False
    for n_tokens in options.n_tokens:
        print(f"{n_tokens} tokens\n{HEADER}")
        found: list[Regret] = []
        for case in cases(options.machines, config):
            found += (these := list(judge(case, n_tokens, options.seeds)))
            print(row(these), flush=True)
            if options.verbose:
                print("\n".join(map(details, these)))
        won = [r for r in found if r.won]
        print(
            f"\noff is best in {len(found) - len(won)} of {len(found)} runs; late and warm met where not: {shares(won)}"
        )
        for verdict in verdicts(found):
            print(verdict)
            missed = missed or (n_tokens == N_TOKENS and verdict.passed is False)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""Judges the policy in virtual time: on measured and other machines, with recorded and synthetic texts.

python -m benchmarks.regret [MACHINE...] [--cases N] [--advice N] [-j JOBS] [-s SEED] [--set NAME=VALUE]... [-v]

In each case a pair generates five texts of 256 tokens. The first one begins with nothing known, and what was learned
passes from text to text through state() and restore(), as between runs. Each text is compared with the oracle: the best
fixed setting for it, with hindsight (benchmarks/oracle.py), and, where that is the target alone, with its time. The
same for first texts of 16 to 128 tokens, for first texts beside a lookup and beside another program that computes in
bursts; and for a text after two that were generated on another machine or with another acceptance: with a wrong
profile. Last, the advice of `duo plan` on random machines is compared with forced schedules.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing import Pool
from statistics import median
from typing import Any

import numpy as np

from benchmarks import argument_parser, samples
from benchmarks.oracle import N_MAX, OFF, Case, Pair, Text, best, late
from benchmarks.runner import Verdict
from benchmarks.samples import N_TOKENS, cases, random_machine, scaled, slower, tilted
from benchmarks.virtual_clock import Load
from duo.bench.results import Range
from duo.diagnose.prospects import forecasts_of, informed
from duo.speculation.constants import DEFAULT, Constants
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule, fastest

SHORT = (16, 32, 64, 128)  # tokens of short first texts
N_LONG = 64  # tokens from which a first text has the bars of a long one
GAIN = 1.3  # of the best setting over the target alone, from which a draft pays well
N_ADVICE_TOKENS = 2000  # of a text with a forced schedule: few enough for a minute, and enough to ignore its beginning
CLOSE = 0.97  # rate of the advised schedule, relative to the best one, that makes the advice right


@dataclass(frozen=True, slots=True)
class Run:
    best: str  # fixed setting
    share: float  # rate relative to that
    over_off: float  # time relative to the target alone
    gain: float = 1.0  # of the best setting over the target alone


@dataclass(frozen=True, slots=True)
class Judged:
    name: str  # machine/pair
    draft: float  # t_d / T(1)
    acceptance: float | None  # None: of recorded texts
    texts: tuple[Run, ...]  # of N_TOKENS, successively
    short: dict[int, Run]  # first texts, by their tokens
    quoting: Run  # a first text of N_TOKENS in which a lookup finds something
    busy: Run | None  # a first text beside another program; None: the draft has a device of its own
    wrong: dict[str, float]  # by profile: the rate of a text's second half, relative to the best for that
    details: tuple[str, ...] = ()  # lines


@dataclass(frozen=True, slots=True)
class Wrong:
    """How a profile is wrong: what it was learned on. The text after it is on the case's machine."""

    machine: Callable[[Machine], Machine] = lambda machine: machine
    learned: float | None = None  # acceptance of the texts learned from, and
    actual: float | None = None  # of the text after them; None: the texts of the case


WRONG = {
    "T(n) halved": Wrong(lambda machine: scaled(machine, 1, 0.5)),
    "T(n) doubled": Wrong(lambda machine: scaled(machine, 1, 2.0)),
    "T(1) a third longer": Wrong(lambda machine: scaled(machine, 4 / 3, 1)),
    "T(1) a quarter shorter": Wrong(lambda machine: scaled(machine, 3 / 4, 1)),
    "accepted 0.1, not 0.9": Wrong(learned=0.1, actual=0.9),
    "accepted 0.9, not 0.1": Wrong(learned=0.9, actual=0.1),
    "all times doubled": Wrong(lambda machine: slower(machine, 2.0)),
}


def judge(case: Case) -> Judged:
    found, lines, state = list[Run](), list[str](), None
    for i, text in enumerate(case.texts):
        pair = case.pair(state=state)
        found.append(compared(case, pair, text, N_TOKENS, i))
        lines.append(details(i, found[-1], pair))
        state = pair.state()
    short = {n: compared(case, case.pair(), case.texts[0], n) for n in SHORT}
    quoting, busy = replace(case, quotes=case.seed), replace(case, load=Load(case.seed))
    beside_lookup = compared(quoting, quoting.pair(), quoting.texts[0], N_TOKENS)
    beside_others = None
    if not (case.separate_devices or case.machine.latency_s):
        beside_others = compared(busy, busy.pair(), busy.texts[0], N_TOKENS)
    wrong = {name: misled(case, profile) for name, profile in WRONG.items()}
    draft = case.machine.draft_s / case.machine.target_s[0]
    return Judged(
        case.name, draft, case.acceptance, tuple(found), short, beside_lookup, beside_others, wrong, tuple(lines)
    )


def compared(case: Case, pair: Pair, text: Text, n_tokens: int, seed: int = 0) -> Run:
    """A text relative to the best fixed setting and to the target alone."""
    run, oracle = case.run(pair, text, n_tokens, seed), best(case, text, n_tokens)
    return Run(oracle.setting, run.rate / oracle.rate, oracle.alone / run.rate, oracle.rate / oracle.alone)


def misled(case: Case, wrong: Wrong) -> float:
    """The rate of the second half of a text with a wrong profile, relative to the best fixed setting for it."""
    *learned, text = (
        case.texts[i] if acceptance is None else tilted(case.texts, acceptance, N_TOKENS, i)
        for i, acceptance in enumerate((wrong.learned, wrong.learned, wrong.actual))
    )
    falsified, state = replace(case, machine=wrong.machine(case.machine)), None
    for seed, each in enumerate(learned):
        pair = case.pair(state=state)
        falsified.run(pair, each, N_TOKENS, seed)
        state = pair.state()
    run = case.run(case.pair(state=state), text, N_TOKENS, len(learned))
    return late(run, N_TOKENS // 2) / best(case, text, N_TOKENS).late


def details(number: int, run: Run, pair: Pair) -> str:
    """What the controller did in a text, and what it had learned by the end."""
    controller, acceptance = pair.controller, pair.draft.acceptance
    changes = ", ".join(f"{c.tokens} {c.schedule.value} ({c.reason[:40]})" for c in controller.chooser.changes)
    found = controller.prospects.estimates(controller.prospects.forecasts())
    estimates = ", ".join(f"{m.schedule.value} {o.rate:.1f} ({o.low:.1f}-{o.high:.1f})" for m, o in found.items())
    accepted = f"{acceptance.mean:.2f} ± {acceptance.sd:.2f}"
    return (
        f"  text {number + 1}: {run.share:.3f} of {run.best}, {run.over_off:.3f} over off: {changes or 'no change'}; "
        f"accepted {accepted}; {estimates}"
    )


def advice(seed: int) -> float:
    """The rate of the schedule that `duo plan` names for a random machine, relative to that of the best one."""
    machine, acceptance = random_machine(seed)
    dice = random.Random(seed)
    text = tuple((0.0, dice.random() < acceptance) for _ in range(N_ADVICE_TOKENS))
    case = Case("random", machine, (text,), n_prompt=1)
    rates = {each: case.forced(each, text, N_ADVICE_TOKENS).rate for each in (Schedule.SYNC, Schedule.ASYNC)}
    rates[Schedule.OFF] = 1 / machine.target_s[0]
    forecasts = forecasts_of(informed(machine, acceptance, N_MAX), constant=True)
    advised = fastest({schedule: each.rate for schedule, each in forecasts.items()})
    return rates[advised] / max(rates.values())


def verdicts(found: Sequence[Judged], advices: Sequence[float]) -> list[Verdict]:
    """The bars. Without runs that a bar is about, it is not measured."""
    first, fifth = [each.texts[0] for each in found], [each.texts[-1] for each in found]
    later, tiny = [run for each in found for run in each.texts[1:]], [each.short[SHORT[0]] for each in found]
    bars = []
    for text, runs, low, middle in (("first text", first, 0.92, 0.96), ("fifth text", fifth, 0.97, 0.99)):
        for name, q, least in (("10th percentile", 10, low), ("median", 50, middle)):
            bars.append(Verdict(f"{text} over the oracle, {name}", percentile([run.share for run in runs], q), least))
    times = (("first text", first, 1.04), (f"first text of {SHORT[0]} tokens", tiny, 1.1), ("later texts", later, 1.01))
    for text, runs, most in times:
        title = f"off is best: time over off, {text}, 95th percentile"
        bars.append(Verdict(title, percentile(harms(runs), 95), most=most))
    for name in WRONG:
        title = f"wrong profile, {name}: second half over the oracle, 10th percentile"
        bars.append(Verdict(title, percentile([each.wrong[name] for each in found], 10), least=0.95))
    right = Range(sum(each >= CLOSE for each in advices) / len(advices)) if advices else None
    bars += first_texts(found)
    return [*bars, Verdict("advice of plan: share within 3 % of the best schedule", right, least=0.97)]


def first_texts(found: Sequence[Judged]) -> Iterator[Verdict]:
    """The bars of first texts of all lengths and circumstances."""
    kinds = {f"{n} tokens": [each.short[n] for each in found] for n in SHORT}
    kinds |= {"beside a lookup": [each.quoting for each in found]}
    kinds |= {"beside another program": [each.busy for each in found if each.busy is not None]}
    for i, (name, runs) in enumerate(kinds.items()):
        shares = [run.share for run in runs]
        if i < len(SHORT) and SHORT[i] < N_LONG:
            yield Verdict(
                f"first text, {name}: over off, 10th percentile", percentile([1 / r.over_off for r in runs], 10), 0.96
            )
            paying = [run.share for run in runs if run.gain >= GAIN]
            yield Verdict(f"first text, {name}: gains of {GAIN}, over the oracle, median", percentile(paying, 50), 0.85)
        else:
            for title, q, least in (("10th percentile", 10, 0.95), ("median", 50, 0.99)):
                yield Verdict(f"first text, {name}: over the oracle, {title}", percentile(shares, q), least)


def harms(runs: Sequence[Run]) -> list[float]:
    return [run.over_off for run in runs if run.best == OFF]


def percentile(values: Sequence[float], q: float) -> Range | None:
    return Range(float(np.percentile(values, q))) if values else None


def tables(found: Sequence[Judged], advices: Sequence[float]) -> Iterator[str]:
    """Lines: the texts by pair, by draft and by acceptance; wrong profiles; advice."""
    head = "cases  first: 10 % median  fifth: 10 % median  off is best: first  short  later (95 %, n)  best settings"
    groups: list[tuple[str, Callable[[Judged], str]]] = [
        ("pair", lambda each: each.name),
        ("t_d / T(1)", lambda each: f"{max(samples.DRAFTS, key=lambda d: -abs(np.log(each.draft / d)))}, about"),
        ("accepted", lambda each: "recorded" if each.acceptance is None else f"{each.acceptance}"),
        ("all", lambda _: ""),
    ]
    for title, key in groups:
        yield f"{title:46} {head}"
        for name in sorted(set(map(key, found))):
            yield f"{name:46} {row([each for each in found if key(each) == name])}"
        yield ""
    yield f"{'wrong profile: second half over the oracle':46} cases     least    10 %  median"
    for name in WRONG:
        yield spread(name, [each.wrong[name] for each in found], 10)
    yield ""
    if advices:
        yield f"{'advice of plan: rate over the best schedule':46} cases     least     3 %  median"
        yield spread("", advices, 3) + "\n"


def spread(name: str, values: Sequence[float], q: float) -> str:
    return f"{name:46} {len(values):5}  {min(values):8.3f} {np.percentile(values, q):7.3f} {median(values):7.3f}"


def row(found: Sequence[Judged]) -> str:
    first, fifth = ([each.texts[i].share for each in found] for i in (0, -1))
    figures = "  ".join(f"{np.percentile(each, 10):11.3f} {median(each):6.3f}" for each in (first, fifth))
    later = harms([run for each in found for run in each.texts[1:]])
    costs = (harms([each.texts[0] for each in found]), harms([each.short[SHORT[0]] for each in found]), later)
    worst = " ".join(f"{np.percentile(each, 95):6.3f} {len(each):3}" if each else 10 * " " for each in costs)
    counts = Counter(run.best for each in found for run in each.texts)
    return f"{len(found):5}  {figures}   {worst}  {' '.join(f'{name} {n}' for name, n in counts.most_common(4))}"


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, for a Constants. Raises ValueError."""
    name, _, value = text.partition("=")
    if name not in {each.name for each in fields(Constants)}:
        raise ValueError(f"no constant {name}")
    found = json.loads(value)
    return name, tuple(found) if isinstance(found, list) else found


def options_of(name: str, description: str | None) -> argparse.Namespace:
    """The options of a judge; those of the policy's constants have an effect at once."""
    found = argument_parser(name, description)
    add = found.add_argument
    files = f"files in {samples.FOLDER.name}, without .json (default: all)"
    add("machines", nargs="*", type=samples.machine_name, metavar="MACHINE", help=files)
    add("-c", "--cases", type=int, default=100, metavar="N", help="at least two of each pair (default: 100)")
    add("-a", "--advice", type=int, default=20, metavar="N", help="random machines for the advice (default: 20)")
    add("-j", "--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    add("-s", "--seed", type=int, default=0, metavar="N", help="other cases (default: 0)")
    add("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="a constant of the policy")
    add("-v", "--verbose", action="store_true", help="print what the policy did in each text")
    options = found.parse_args()
    for constant, value in options.set:
        setattr(DEFAULT, constant, value)
    return options


def main() -> int:
    """Print the tables and the bars. The exit status: 1 if a bar is missed."""
    options = options_of("regret", __doc__)
    with Pool(options.jobs) as pool:
        found = list(pool.imap(judge, cases(options.cases, options.machines, options.seed)))
        advices = list(pool.imap(advice, range(options.advice)))
    for each in found if options.verbose else ():
        accepted = "recorded texts" if each.acceptance is None else f"accepted {each.acceptance}"
        wrong = ", ".join(f"{name} {share:.3f}" for name, share in each.wrong.items())
        print(f"{each.name}, t_d {each.draft:.3f} T(1), {accepted}", *each.details, f"  {wrong}", sep="\n")
    bars = verdicts(found, advices)
    print(*tables(found, advices), *bars, sep="\n")
    return int(any(bar.passed is False for bar in bars))


if __name__ == "__main__":
    sys.exit(main())

"""`duo tune`: measures a pair on this machine and saves the result for later runs."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from duo.cli.commands.plan import fastest, predict, render, sufficient
from duo.cli.load import loaded
from duo.cli.options.tune import TuneOptions
from duo.cli.prompts import PROMPTS
from duo.cli.terminal.console import progress_bar, say
from duo.cli.terminal.files import blame
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.config import AUTO_DRAFT
from duo.diagnose.measure import Measurements, Meter
from duo.diagnose.target_meter import SIZES, Stopped
from duo.diagnose.timing import MeasurementError
from duo.engine.cores import split_cores, usable_cores
from duo.engine.engine import Engine
from duo.engine.slot import Slot
from duo.engine.threads import ON_CPU
from duo.engine.warmup import N_SEQUENCES
from duo.errors import UsageError
from duo.spec import forecast
from duo.spec.constants import DEFAULT
from duo.spec.curves import increasing, interpolated
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine

_N_TEXTS = 3
_N_TEXT = 48  # tokens generated after each of them
_REPLAY_S = 3  # seconds of the forecasts


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best numbers of threads, and what was measured with them."""

    target: int
    draft: int
    beside: tuple[int, int]  # of target and draft when concurrent
    machine: Machine


def tune(options: TuneOptions) -> int:
    """Measure, print and save. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    if not options.has_draft:
        raise UsageError("nothing to tune without a draft: name one with -md or -hfd")
    with loaded(options) as engine:
        slot = engine.slot
        if slot.can_speculate:
            engine.call(lambda slot: slot.reserve(0, 0))
        if slot.draft is None:
            say("One of these models cannot roll back its cache, so a draft cannot be used: omit -md.")
            return 0
        if slot.profile is None:
            raise UsageError("no directory to save the profile in: set DUO_CONFIG")
        measured = _measure(engine)
        profile = slot.profile
    if isinstance(measured, int):
        say("duo: interrupted: nothing was saved")
        return measured
    acceptance = _acceptance(measured)
    tuned = choose(measured, acceptance)
    threads = {"target": tuned.target, "draft": tuned.draft, "beside": tuned.beside}
    with blame("the profile", profile.path):
        profile.save({"policy": learned(measured, tuned).state(), "threads": threads})
    rates = predict(tuned.machine, acceptance, AUTO_DRAFT)
    table = (*_describe(measured, acceptance), "", *render(tuned.machine, acceptance, rates, AUTO_DRAFT), "")
    saved = f"Saved in {profile.path}, which later runs load (unless --no-profile)."
    print("\n".join([*table, *advise(tuned, acceptance, rates), saved]))  # noqa: T201 - the output
    return 0


def choose(measured: Measurements, acceptance: float) -> Tuned:
    """The numbers of threads with the best forecasts."""
    n_draft = min(measured.draft, key=measured.draft.__getitem__)
    draft_s = measured.draft[n_draft]

    def sequential_rate(n_threads: int) -> float:
        return forecast.taking_turns(_curve(measured, n_threads), draft_s, acceptance).rate

    n_target = max({n for n, _ in measured.target}, key=sequential_rate)
    split = concurrent_threads(measured, acceptance)
    times, concurrent_draft_s = measured.beside[split]
    alone = _curve(measured, n_target)
    # A concurrent decode cannot be faster: where it seems so, the measurement is noisy.
    concurrent = [max(pair) for pair in zip(alone, times.values(), strict=True)]
    beside_draft_s = max(draft_s, concurrent_draft_s)
    machine = Machine(alone, draft_s, concurrent, beside_draft_s, branch_s=_branch_times(measured, beside_draft_s))
    return Tuned(n_target, n_draft, split, machine)


def concurrent_threads(measured: Measurements, acceptance: float) -> tuple[int, int]:
    """The numbers of threads of target and draft with the best forecast of schedule async."""

    def rate(split: tuple[int, int]) -> float:
        times, draft_s = measured.beside[split]
        return forecast.overlapped(list(times.values()), draft_s, acceptance, 2 * AUTO_DRAFT).rate

    return max(measured.beside, key=rate)


def _branch_times(measured: Measurements, draft_s: float) -> list[float]:
    """t_d for 1, 2, … sequences, concurrently; empty if it was not measured. Never less for more of them."""
    if not measured.branches:
        return []
    known = {1: draft_s} | {n: max(draft_s, seconds) for n, seconds in measured.branches.items()}
    return interpolated(increasing(known, {}), max(known), DEFAULT)


def learned(measured: Measurements, tuned: Tuned) -> Policy:
    """A policy that has learned what was measured."""
    policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT, draft_threads=(tuned.draft,))
    policy.begin(0, mode="greedy")
    machine = tuned.machine
    for costs, times in ((policy.alone, machine.target_s), (policy.beside, machine.beside_target_s)):
        for n, seconds in enumerate(times, 1):
            costs.add_target(n, seconds)
    policy.alone.add_draft(machine.draft_s, tuned.draft)
    policy.beside.add_draft(machine.beside_draft_s)
    for n in measured.branches:
        policy.beside.add_draft(machine.branch_s[n - 1], n_sequences=n)
    policy.learn_scores(measured.scores)
    return policy


def advise(tuned: Tuned, acceptance: float, rates: dict[Schedule, float]) -> list[str]:
    """Whether a draft pays, and the options to use."""
    machine = tuned.machine
    best = fastest(rates)
    gain = rates[best] / rates[Schedule.OFF]
    share = 100 * machine.draft_s / machine.target_s[0]
    if gain < 1.02:
        return [
            f"This draft does not pay: one of its tokens takes {share:.0f} % of the target's time, and "
            f"{100 * acceptance:.0f} % are accepted.",
            "Options: --schedule off, or omit -md",
        ]
    words, threads = {
        Schedule.SYNC: ("sequentially", (tuned.target, tuned.draft)),
        Schedule.ASYNC: ("concurrently", tuned.beside),
    }[best]
    return [
        f"This draft pays: about {gain:.2f} times as fast, running {words}"
        f"{sufficient(machine, acceptance, best, AUTO_DRAFT)}.",
        f"Options: --schedule {best.value} (with {threads[0]} and {threads[1]} threads, as saved); without it, duo "
        "measures the fastest schedule in every text",
    ]


def _describe(measured: Measurements, acceptance: float) -> list[str]:
    sizes = (1, 2, 4, 5, 8, 16)

    def row(name: str, times: list[float]) -> str:
        return f"{name:<36}" + "".join(f"{1000 * times[n - 1]:8.2f}" for n in sizes)

    lines = [f"{'ms per decode, by batch size':<36}" + "".join(f"{n:>8}" for n in sizes)]
    for n_threads in sorted({n for n, _ in measured.target}):
        lines.append(row(f"target on {_threads(n_threads)}", _curve(measured, n_threads)))
    for (target, draft), (times, _) in measured.beside.items():
        lines.append(row(f"target on {target}, concurrent draft on {draft}", list(times.values())))
    for n_threads, seconds in sorted(measured.draft.items()):
        lines.append(f"{f'draft on {_threads(n_threads)}':<36}{1000 * seconds:8.2f}")
    for (target, draft), (_, seconds) in measured.beside.items():
        lines.append(f"{f'draft on {draft}, concurrent target on {target}':<36}{1000 * seconds:8.2f}")
    if measured.branches:
        sizes_text = ", ".join(map(str, measured.branches))
        times_text = ", ".join(f"{1000 * seconds:.2f}" for seconds in measured.branches.values())
        lines.append(f"concurrent draft, one token in {sizes_text} sequences at once: {times_text} ms")
    return [*lines, f"{100 * acceptance:.0f} % of the draft's tokens would be accepted"]


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _curve(measured: Measurements, n_threads: int) -> list[float]:
    return [seconds for (threads, _), seconds in sorted(measured.target.items()) if threads == n_threads]


def _acceptance(measured: Measurements) -> float:
    return sum(right for _, right in measured.scores) / len(measured.scores)


def _measure(engine: Engine) -> Measurements | int:
    """All measurements; the exit status after Ctrl-C."""
    texts = [engine.tokenize(text) for text in PROMPTS[:_N_TEXTS]]
    cores = usable_cores()
    stop = threading.Event()
    with progress_bar() as show, on_interrupt(stop.set) as interrupt:

        def work(slot: Slot) -> Measurements:
            assert slot.target_cache is not None
            assert slot.draft_cache is not None
            meter = Meter(slot.target_cache.context, slot.draft_cache.context, show, stop, note=_note)
            splits = {split_cores(None, None, cores), (max(1, cores - 1), 1), (max(1, cores // 2), max(1, cores // 2))}
            counts = sorted({max(1, cores // 2), cores})
            on_cpu = slot.target.places == ON_CPU
            branches = [n for n in N_SEQUENCES if n <= 1 + slot.draft_cache.context.n_branches]
            n_groups = len(counts) + len(splits) + len(branches) / len(SIZES)
            times = meter.announce(cores, n_groups, len(texts) * _N_TEXT, on_cpu=on_cpu)
            expected_s, limit_s = (math.ceil(_REPLAY_S + seconds) for seconds in times)
            _note(f"measuring takes about {expected_s} s, at most {limit_s} s")
            found = meter.measure(counts, sorted({1, cores}), sorted(splits), len(texts) + len(branches))
            ratios = []
            for text in texts:
                scores, ratio = meter.accept(text, _N_TEXT, cores, slot.translation)
                found.scores += scores
                ratios.append(ratio)
            found.scale_draft(sum(ratios) / len(ratios))
            if branches:
                found.branches = meter.branches(concurrent_threads(found, _acceptance(found)), branches)
            return found

        try:
            return engine.call(work)
        except Stopped:
            return interrupt.status
        except MeasurementError as error:
            raise MeasurementError(f"{error}; nothing was saved (duo bench measures on a busy machine, too)") from error


def _note(text: str) -> None:
    say(f"duo: {text}")

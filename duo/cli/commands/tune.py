"""`duo tune`: measures a pair on this machine and saves the result for later runs."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from duo.cli.commands.compare_drafts import compare_drafts, prompts_of
from duo.cli.commands.plan import Prospects, foretell, render, sufficient
from duo.cli.commands.saved_profiles import list_profiles, reset_profiles
from duo.cli.load import check_usage, loaded
from duo.cli.options.by_command import TuneOptions
from duo.cli.terminal.console import progress_bar, say
from duo.cli.terminal.files import blame, check_writable
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.cli.terminal.run_statistics import Facts, write_json
from duo.config import AUTO_DRAFT
from duo.diagnose.measure import Measurements, Meter, learn_scores
from duo.diagnose.target_meter import SIZES, Stopped
from duo.diagnose.timing import MeasurementError
from duo.engine.contexts import N_SEQUENCES
from duo.engine.cores import ON_CPU, split_cores, usable_cores
from duo.engine.engine import Engine
from duo.engine.slot import Slot
from duo.errors import UsageError
from duo.models.profiles import ProfileDocument
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule

_N_CTX = 192  # enough for the batches that are timed
_SHOWN = (1, 2, 4, 5, 8, 12, 17)  # sizes of batches in the table


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best numbers of threads, and a policy that has learned what was measured with them."""

    target: int
    draft: int
    beside: tuple[int, int]  # of target and draft when concurrent
    policy: Policy

    @property
    def prospects(self) -> Prospects:
        """What the pair can reach."""
        return foretell(self.policy, constant=False, prepares=self.policy.concurrent.knows_draft(1, N_SEQUENCES[0]))


def tune(options: TuneOptions) -> int:
    """Measure a pair, compare drafts, or show or remove what was learned. Returns the exit status. Raises DuoError."""
    names = options.names or []
    if options.lists or options.reset:
        if options.lists and options.reset:
            raise UsageError("--list and --reset: use only one")
        return list_profiles(names) if options.lists else reset_profiles(names)
    send_log(verbose=options.verbose, file=options.log_file)
    check_writable(options.json, "--json")
    options.model_names()
    check_usage(options.engine)
    return compare_drafts(options) if names or not options.has_draft else _tune_pair(options)


def _tune_pair(options: TuneOptions) -> int:
    """Measure a pair, print what it means, and save it. Returns the exit status."""
    threads_given = {"-t": options.engine.n_threads, "-td": options.engine.draft_n_threads}
    given = [name for name, n in threads_given.items() if n is not None]
    if given:
        say(f"duo: without effect here: {', '.join(given)}: the best numbers of threads are measured")
        options = replace(options, engine=replace(options.engine, n_threads=None, draft_n_threads=None))
    with loaded(options, options.predict) as engine:
        slot = engine.slot
        prompts = prompts_of(options, engine)
        if slot.can_speculate:
            engine.call(lambda slot: slot.reserve(max(_N_CTX, *map(len, prompts)), options.predict))
        if slot.draft is None:
            say("One of these models cannot roll back its cache, so a draft cannot be used: omit -md.")
            return 0
        if slot.profile is None:
            raise UsageError("no directory to save the profile in: set DUO_CONFIG")
        measured = _measure(engine, prompts, options.predict)
        profile = slot.profile
        facts = Facts.of(slot, options) if options.json else None
    if isinstance(measured, int):
        say("duo: interrupted: nothing was saved")
        return measured
    tuned = choose(measured)
    prospects = tuned.prospects
    result: ProfileDocument = {
        "policy": tuned.policy.state(),
        "threads": {"target": tuned.target, "draft": tuned.draft, "beside": tuned.beside},
    }
    said = [*describe(measured), "", *render(prospects), "", *advise(measured, tuned, prospects)]
    if measured.doubts:
        said[:0] = [f"tentative: {measured.doubts}", ""]
        said.append("Nothing was saved: try again when the machine is idle.")
    else:
        with blame("the profile", profile.path):
            profile.save(result)
        said.append(f"Saved in {profile.path}, which later runs load (unless --no-profile).")
    print("\n".join(said))  # noqa: T201 - the output
    if options.json:
        forecast = {schedule.value: rate for schedule, rate in prospects.rates.items()}
        with blame("--json", options.json):
            write_json(options.json, facts, result, {"forecast_tokens_per_s": forecast})
    return 0


def choose(measured: Measurements) -> Tuned:
    """The numbers of threads with the best forecasts."""
    n_draft = min(measured.draft, key=measured.draft.__getitem__)
    split = concurrent_threads(measured)
    policies = {n: learned(measured, n, n_draft, split) for n, _ in measured.target}
    n_target = max(policies, key=lambda n: policies[n].forecasts()[Schedule.SYNC].rate)
    return Tuned(n_target, n_draft, split, policies[n_target])


def concurrent_threads(measured: Measurements) -> tuple[int, int]:
    """The numbers of threads of target and draft with the best forecast of schedule async."""
    n_target, n_draft = (max(n for n, _ in measured.target), min(measured.draft, key=measured.draft.__getitem__))

    def rate(split: tuple[int, int]) -> float:
        return learned(measured, n_target, n_draft, split).forecasts()[Schedule.ASYNC].rate

    return max(measured.concurrent, key=rate)


def learned(measured: Measurements, n_target: int, n_draft: int, split: tuple[int, int]) -> Policy:
    """A policy that has learned what was measured with these numbers of threads."""
    policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT, draft_threads=(n_draft,), branches=None)
    policy.begin(0, mode="greedy")
    alone = _times(measured, n_target)
    concurrent, concurrent_draft_s = measured.concurrent[split]
    # A concurrent decode cannot be faster: where it seems so, the measurement is noisy.
    draft_s = measured.draft[n_draft]
    concurrent_draft_s = max(draft_s, concurrent_draft_s)
    for n, seconds in alone.items():
        policy.alone.add_target(n, seconds)
    for n, seconds in concurrent.items():
        policy.concurrent.add_target(n, max(seconds, alone.get(n, 0.0)))
    policy.alone.add_draft(draft_s, n_draft)
    if n_draft in measured.pair:
        policy.alone.add_pair(max(draft_s, measured.pair[n_draft]))
    policy.concurrent.add_draft(concurrent_draft_s)
    for n, seconds in measured.branches.items():
        policy.concurrent.add_draft(max(concurrent_draft_s, seconds), n_sequences=n)
    learn_scores(policy, measured.scores)
    return policy


def advise(measured: Measurements, tuned: Tuned, prospects: Prospects) -> list[str]:
    """Whether a draft pays, and the options to use."""
    best, alone = prospects.best, tuned.policy.alone
    gain = prospects.rates[best] / prospects.rates[Schedule.OFF]
    if best is Schedule.OFF:
        return [
            f"This draft does not pay: one of its tokens takes {100 * alone.draft_s / alone.target_s(1):.0f} % of the "
            f"target's time, and {100 * _acceptance(measured):.0f} % are accepted.",
            "Options: --schedule off, or omit -md",
        ]
    words, threads = {
        Schedule.SYNC: ("sequentially", (tuned.target, tuned.draft)),
        Schedule.ASYNC: ("concurrently", tuned.beside),
    }[best]
    saved = "" if measured.doubts else ", as saved"
    return [
        f"This draft pays: about {gain:.2f} times as fast, running {words}{sufficient(prospects)}.",
        f"Options: --schedule {best.value} (with {threads[0]} and {threads[1]} threads{saved}); without it, duo "
        "measures the fastest schedule in every text",
    ]


def describe(measured: Measurements) -> list[str]:
    """What was measured, and what the forecasts assume."""

    def row(name: str, times: Mapping[int, float]) -> str:
        cells = (f"{1000 * times[n]:.2f}" if n in times else "" for n in _SHOWN)
        return f"{name:<36}{''.join(f'{cell:>8}' for cell in cells)}".rstrip()

    lines = [f"{'measured, ms per decode of n tokens':<36}{''.join(f'{n:>8}' for n in _SHOWN)}"]
    for n_threads in sorted({n for n, _ in measured.target}):
        lines.append(row(f"target on {_threads(n_threads)}", _times(measured, n_threads)))
    for (target, draft), (times, _) in measured.concurrent.items():
        lines.append(row(f"target on {target}, concurrent draft on {draft}", times))
    for n_threads, seconds in sorted(measured.draft.items()):
        pair = {2: measured.pair[n_threads]} if n_threads in measured.pair else {}
        lines.append(row(f"draft on {_threads(n_threads)}", {1: seconds} | pair))
    for (target, draft), (_, seconds) in measured.concurrent.items():
        lines.append(row(f"draft on {draft}, concurrent target on {target}", {1: seconds}))
    if measured.branches:
        sizes_text = ", ".join(map(str, measured.branches))
        times_text = ", ".join(f"{1000 * seconds:.2f}" for seconds in measured.branches.values())
        lines.append(f"concurrent draft, one token in {sizes_text} sequences at once: {times_text} ms")
    lines.append(f"{100 * _acceptance(measured):.0f} % of the draft's tokens would be accepted")
    n_draft = min(measured.draft, key=measured.draft.__getitem__)
    return lines if n_draft in measured.pair else [*lines, "assumed: the draft's time for two tokens"]


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _times(measured: Measurements, n_threads: int) -> dict[int, float]:
    """The target's times alone on so many threads, by tokens in the batch."""
    return {n: seconds for (threads, n), seconds in sorted(measured.target.items()) if threads == n_threads}


def _acceptance(measured: Measurements) -> float:
    return sum(right for _, right in measured.scores) / len(measured.scores)


def _measure(engine: Engine, prompts: Sequence[Sequence[int]], n_text: int) -> Measurements | int:
    """All measurements; the exit status after Ctrl-C."""
    cores = usable_cores()
    stop = threading.Event()
    with progress_bar() as show, on_interrupt(stop.set) as interrupt:

        def work(slot: Slot) -> Measurements:
            assert slot.target_cache is not None
            assert slot.draft_cache is not None
            context = slot.draft_cache.context
            splits = {split_cores(None, None, cores), (max(1, cores - 1), 1), (max(1, cores // 2), max(1, cores // 2))}
            counts = sorted({max(1, cores // 2), cores})
            on_cpu = slot.target.places == ON_CPU
            branches = [n for n in N_SEQUENCES if n <= 1 + context.n_branches]
            n_groups = len(counts) + len(splits) + len(branches) / len(SIZES)
            n_jobs = len(prompts) + math.ceil(n_groups * len(SIZES))
            meter = Meter(slot.target_cache.context, context, show, stop, n_jobs, _note)
            times = meter.announce(cores, n_groups, len(prompts) * n_text, on_cpu=on_cpu)
            expected_s, limit_s = map(math.ceil, times)
            _note(f"measuring takes about {expected_s} s, at most {limit_s} s")
            # The scores first: they do not depend on what else computes.
            texts = [(prompt, meter.write(prompt, n_text, cores)) for prompt in prompts]
            scored = [meter.score(prompt, text, cores, slot.translation) for prompt, text in texts]
            found = meter.measure(counts, sorted({1, cores}), sorted(splits), len(branches))
            found.scores = [score for scores, _ in scored for score in scores]
            found.scale_draft(sum(ratio for _, ratio in scored) / len(scored))
            if branches and not found.doubts:
                found.branches = meter.branches(concurrent_threads(found), branches)
                found.doubts = meter.doubts
            return found

        try:
            return engine.call(work)
        except Stopped:
            return interrupt.status
        except MeasurementError as error:
            raise MeasurementError(f"{error}; nothing was saved (duo bench measures on a busy machine, too)") from error


def _note(text: str) -> None:
    say(f"duo: {text}")

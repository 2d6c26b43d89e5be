"""`duo tune`: measures a pair on this machine and saves the result for later runs."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from duo.bench.contestants import greedy, write
from duo.bench.results import run_facts, write_json
from duo.cli.commands.compare_drafts import compare_drafts, prompts_of
from duo.cli.commands.options import TuneOptions
from duo.cli.commands.plan import render, sufficient
from duo.cli.commands.saved_profiles import list_profiles, reset_profiles
from duo.cli.load import loaded
from duo.cli.options import read_prompts
from duo.cli.terminal.console import blame, check_writable, columns, note, progress_bar, send_log
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import AUTO_DRAFT, MAX_BRANCHES
from duo.diagnose.measure import Interrupted, MeasurementError, Meter, Text, check_measurable, measure_pair
from duo.diagnose.prospects import Measurements, Prospects, curve, foretell, informed
from duo.engine.cores import split_cores, usable_cores
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.errors import UsageError
from duo.models.profiles import TunedThreads
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule

_N_CTX = 192  # enough for the batches that are timed
_SHOWN = (1, 2, 4, 5, 8, 12, 17)  # sizes of batches in the table


class Tuned(NamedTuple):
    """The best numbers of threads, a draft that has learned what was measured with them, and what the pair reaches."""

    threads: TunedThreads
    draft: DraftEstimates
    prospects: Prospects


def tune(options: TuneOptions) -> int:
    """Measure a pair, compare drafts, or show or remove what was learned. Returns the exit status. Raises DuoError."""
    names = options.names or []
    if options.lists and options.reset:
        raise UsageError("--list and --reset: use only one")
    if options.latency_ms is not None and (names or options.lists or options.reset or not options.has_draft):
        raise UsageError("--latency-ms is a prediction for one draft: add -md, and name nothing else")
    if options.lists or options.reset:
        return list_profiles(names) if options.lists else reset_profiles(names)
    send_log(options)
    check_writable(options.json, "--json")
    options.model_names()
    read_prompts(options.prompts)
    return compare_drafts(options) if names or not options.has_draft else _tune_pair(options)


def _tune_pair(options: TuneOptions) -> int:
    """Measure a pair, print what it means, and save it. Returns the exit status."""
    if options.engine.n_threads is not None or options.engine.draft_n_threads is not None:
        note("-t and -td have no effect here: the best numbers of threads are measured")
        options = replace(options, engine=replace(options.engine, n_threads=None, draft_n_threads=None))
    with loaded(options, options.predict) as engine:
        slot = engine.slot
        prompts = prompts_of(options, engine)
        if slot.can_speculate:
            with progress_bar():
                engine.call(lambda slot: slot.reserve(max(_N_CTX, *map(len, prompts)), options.predict))
        if slot.draft is None:
            note("one of these models cannot roll back its cache, so a draft cannot be used: omit -md")
            return 0
        if slot.draft_model is not None:
            check_measurable(slot.draft_model)
        assert slot.estimates is not None
        if options.latency_ms is not None and slot.uses_head:
            raise UsageError("this draft reads what the target computes, so it cannot be elsewhere: omit --latency-ms")
        profiles = slot.profiles
        if not profiles.drafts:
            raise UsageError("no directory to save the profile in: set DUO_CONFIG")
        measured = _measure(engine, prompts, options.predict)
        about = run_facts(slot, options) if options.json else None
    if isinstance(measured, int):
        note("interrupted: nothing was saved")
        return measured
    tuned = choose(measured)
    name, profile = next(iter(profiles.drafts.items()))
    states = tuned.draft.target.state(), tuned.draft.state()
    result = {"policy": {"target": states[0], "draft": states[1]}, "threads": tuned.threads}
    said = [*describe(measured), "", *render(tuned.prospects), ""]
    forecasts: dict[str, object] = {"forecast_tokens_per_s": tuned.prospects.rates}
    if options.latency_ms is not None:
        there = elsewhere(measured, tuned, options.latency_ms / 1000)
        forecasts["elsewhere"] = {"latency_ms": options.latency_ms, "forecast_tokens_per_s": there.rates}
        said += [f"the draft on another machine like this one, round trip {options.latency_ms:g} ms:"]
        said += [*render(there), ""]
    said += advise(measured, tuned)
    if measured.doubts:
        said[:0] = [f"tentative: {measured.doubts}", ""]
        said.append("Nothing was saved: try again when the machine is idle.")
    else:
        with blame("the profile", profile.path):
            profiles.save(states[0], {name: states[1]}, tuned.threads)
        said.append(f"Saved in {profile.path}, which later runs load (unless --no-profile).")
    print("\n".join(said))  # noqa: T201 - the output
    if options.json:
        with blame("--json", options.json):
            write_json(options.json, about, result, forecasts)
    return 0


def choose(measured: Measurements) -> Tuned:
    """The numbers of threads with the best forecasts."""
    split = concurrent_threads(measured)
    found = {n: measured.estimates(n, split) for n in measured.target}
    n_target = max(found, key=lambda n: found[n].forecasts()[Schedule.SYNC].rate)
    draft = found[n_target]
    prospects = foretell(draft, constant=False, prepares=bool(measured.branches))
    return Tuned({"target": n_target, "draft": measured.fastest_draft, "concurrent": split}, draft, prospects)


def elsewhere(measured: Measurements, tuned: Tuned, latency_s: float) -> Prospects:
    """What the pair reaches if the draft runs alone on such a machine, a round trip of `latency_s` away."""
    target, draft = measured.target[tuned.threads["target"]], measured.draft[measured.fastest_draft]
    target_s = curve({n: 1000 * seconds for n, seconds in target.items()}, AUTO_DRAFT + 1)
    by_sequences = {1: 1.0} | {n: max(1.0, factor) for n, factor in measured.branches.items()}
    branch_s = curve({n: 1000 * draft[1] * factor for n, factor in by_sequences.items()}, MAX_BRANCHES + 1)
    machine = Machine(
        target_s, draft[1], target_s, draft[1], pair_s=draft.get(2, 0.0), latency_s=latency_s,
        branch_s=branch_s if measured.branches else (), aborts=tuned.draft.aborts,
    )  # fmt: skip
    pair = informed(machine, measured.acceptance, AUTO_DRAFT)
    pair.acceptance.restore(tuned.draft.acceptance.state())  # what the forecast for this machine knows of candidates
    return foretell(pair, constant=False, prepares=bool(measured.branches))


def concurrent_threads(measured: Measurements) -> tuple[int, int]:
    """The numbers of threads of target and draft with the best forecast of schedule async."""
    n_target = max(measured.target)
    rates = {
        split: measured.estimates(n_target, split).forecasts()[Schedule.ASYNC].rate for split in measured.concurrent
    }
    return max(rates, key=rates.__getitem__)


def advise(measured: Measurements, tuned: Tuned) -> list[str]:
    """Whether a draft pays, and the options to use."""
    best, rates, draft = tuned.prospects.best, tuned.prospects.rates, tuned.draft
    if best is Schedule.OFF:
        share = draft.costs.alone.token_s / draft.target.alone.seconds(1)
        return [
            f"This draft does not pay: one of its {'blocks' if measured.block else 'tokens'} takes {100 * share:.0f} % "
            f"of the target's time, and {100 * measured.acceptance:.0f} % are accepted.",
            "Options: omit -md (of an MTP layer: --heads off); the lookup needs no draft",
        ]
    words, threads = "concurrently", tuned.threads["concurrent"]
    if best is Schedule.SYNC:
        words, threads = "sequentially", (tuned.threads["target"], tuned.threads["draft"])
    gain, saved = rates[best] / rates[Schedule.OFF], "" if measured.doubts else ", as saved"
    return [
        f"This draft pays: about {gain:.2f} times as fast, running {words}{sufficient(tuned.prospects)}.",
        f"Options: --schedule {best.value} (with {threads[0]} and {threads[1]} threads{saved}); without it, duo "
        "measures the fastest schedule in every text",
    ]


def describe(measured: Measurements) -> list[str]:
    """What was measured, and what the forecasts assume."""
    times = {f"target, threads: {n}": found for n, found in sorted(measured.target.items())}
    block = ", a block" if measured.block else ""
    times |= {f"draft{block}, threads: {n}": {2: found[1]} | found for n, found in sorted(measured.draft.items())}
    for (target, draft), (both, seconds) in () if measured.block else measured.concurrent.items():
        times[f"concurrent target, threads: {target}+{draft}"] = both
        times[f"concurrent draft, threads: {target}+{draft}"] = {1: seconds}
    heads = ("measured, ms per decode of n tokens", *map(str, _SHOWN))
    rows = [(name, *(f"{1000 * row[n]:.2f}" if n in row else "" for n in _SHOWN)) for name, row in times.items()]
    lines = columns([heads, *rows], {0})
    if measured.branches:
        sizes = ", ".join(map(str, measured.branches))
        _, one_s = measured.concurrent[concurrent_threads(measured)]
        found = ", ".join(f"{1000 * factor * one_s:.2f}" for factor in measured.branches.values())
        lines.append(f"concurrent draft, one token in {sizes} sequences at once: {found} ms")
    return [*lines, f"{100 * measured.acceptance:.0f} % of the draft's tokens would be accepted"]


def _measure(engine: Engine, prompts: Sequence[Sequence[int]], n_text: int) -> Measurements | int:
    """All measurements; the exit status after Ctrl-C."""
    cores, stop = usable_cores(), threading.Event()
    half = max(1, cores // 2)
    splits, counts = {split_cores(None, None, cores), (max(1, cores - 1), 1), (half, half)}, {half, cores}

    def interrupt() -> None:
        stop.set()
        engine.interrupt()

    with progress_bar() as show, on_interrupt(interrupt) as interrupted:

        def begin(slot: ModelPair) -> Meter:
            assert slot.target_cache is not None
            assert slot.draft_cache is not None
            meter = Meter(slot.target_cache.context, slot.draft_cache.context, show, stop, note)
            n_tokens, n_groups = len(prompts) * n_text, len(counts) + len(splits)
            expected_s, limit_s = meter.announce(cores, n_groups, n_tokens, slot.target.places)
            note(f"measuring takes about {expected_s} s on an idle machine, and at most {limit_s} s")
            return meter

        try:
            meter, texts = engine.call(begin), list[Text]()
            for i, prompt in enumerate(prompts):
                show(f"text {i + 1} of {len(prompts)}", 0.0)
                text, _ = write(engine, prompt, greedy(n_text, may_end=False), Proposers())
                texts.append((prompt, text.tokens))
            groups = sorted(counts), sorted({1, cores}), sorted(splits)
            return engine.call(lambda slot: measure_pair(slot, meter, texts, *groups))
        except Interrupted:
            return interrupted.status
        except MeasurementError as error:
            raise MeasurementError(f"{error}; nothing was saved (duo bench measures on a busy machine, too)") from error

"""`duo bench`: benchmarks plain decoding, duo's modes and llama.cpp's programs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from duo.bench import programs
from duo.bench.facts import circumstances, model_facts
from duo.bench.modes import ALONE, MODES, InProcess, own_modes
from duo.bench.prompts import Prompt, built_in, chosen, parse_prompts, rounds
from duo.bench.results import Results
from duo.bench.rounds import Job, Sample, measure
from duo.cli.inputs import read_file
from duo.cli.installation import SLOWING
from duo.cli.load import check_usage, loaded
from duo.cli.options.by_command import BenchOptions
from duo.cli.terminal import bench_table
from duo.cli.terminal.console import say, warn
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.config import AUTO_DRAFT
from duo.engine.background import background
from duo.engine.cores import usable_cores
from duo.engine.engine import Engine
from duo.engine.free_cores import cpu_times, is_busy, other_cpu_use
from duo.engine.slot import Slot
from duo.errors import PromptError, UsageError
from duo.llama.model import Model

_ROOM = 32  # extra context tokens that the programs may need
_MAX_DIGITS = 40  # of a number; Python refuses to convert thousands
_DEFAULT_MODES = ("plain", "sync", "async", "auto")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    modes: tuple[str, ...]
    modes_were_named: bool
    limits: dict[str, int | None]  # maximum candidates per batch, by name; None is auto
    prompts: list[Prompt]
    programs: dict[str, Path]
    programs_were_found: bool  # on the PATH, not requested

    @property
    def largest(self) -> int | None:
        """The largest limit, which the contexts must have room for; None if all are auto."""
        known = [n for n in self.limits.values() if n is not None]
        return max(known + [AUTO_DRAFT] * (len(known) < len(self.limits))) if known else None


def bench(options: BenchOptions) -> int:
    """Run the benchmark and print the results. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file, hidden=("duo.link", "duo.process"))
    plan = read_plan(options)
    load_before, since = round(os.getloadavg()[0], 2), cpu_times()
    options = replace(options, engine=replace(options.engine, draft_n_max=plan.largest))
    check_usage(options.engine)
    versions = {name: {"path": str(path), "version": programs.version(path)} for name, path in plan.programs.items()}
    with loaded(options, options.predict) as engine:
        slot = engine.slot
        _warn_of_programs(plan, slot)
        prompts = [replace(p, text=_text(p, slot.target, raw=options.raw)) for p in plan.prompts]
        taken = rounds(prompts, options.repetitions)
        _reserve(engine, taken, options.predict)
        limits = {name: replace(slot.config, draft_n_max=n).drafting() for name, n in plan.limits.items()}
        contestants = own_modes(engine, _possible(plan, slot), limits)
        contestants += programs.other_programs(
            plan.programs, list(plan.limits.values()), engine, may_fail=plan.programs_were_found
        )
        results = Results(contestants)
        facts = circumstances() | {"load_before": load_before, "complete": False, "peers": versions}
        facts["options"] = msgspec.to_builtins(options, enc_hook=str) | {"draft": options.limits}
        models = (slot.target, slot.draft_model)
        facts["models"] = {
            name: model and model_facts(model) for name, model in zip(("target", "draft"), models, strict=True)
        }
        _caution(other_cpu_use(since))
        draft = slot.draft_model.path if slot.draft_model is not None else None
        job = Job(slot.target.path, draft, "", Path(), options.predict, slot.n_ctx)
        try:
            status = _measure(results, taken, job)
            facts["complete"] = not status
            return status
        finally:  # also after an error
            if results.samples:
                text = json.dumps(results.document() | facts, indent=2)
                print(text if options.output == "json" else "\n".join(_markdown(results, facts)))  # noqa: T201


def read_plan(options: BenchOptions) -> Plan:
    """Parse and check the list options, before any model is loaded. Raises UsageError or PromptError."""
    modes = _split(options.modes, "--modes") if options.modes is not None else ()
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise UsageError(f"--modes: unknown mode {unknown[0]!r} (available: {', '.join(MODES)})")
    if not options.has_draft and (drafting := [mode for mode in modes if mode not in (*ALONE, "auto")]):
        raise UsageError(f"--modes {drafting[0]} needs a draft: name one with -md or -hfd")
    prompts = built_in()
    if options.prompts is not None:
        prompts = parse_prompts(read_file(options.prompts, escape=False)[1])
    if options.categories is not None:
        prompts = chosen(prompts, _split(options.categories, "--categories"))
    return Plan(
        modes or (_DEFAULT_MODES if options.has_draft else ("plain", "lookup")),
        bool(modes),
        {name: _limit(name) for name in _split(options.limits, "--draft")},
        prompts,
        programs.found_on_path() if options.peers is None else _named_programs(options.peers),
        options.peers is None,
    )


def _limit(name: str) -> int | None:
    if name == "auto":
        return None
    if not name.isdecimal() or len(name) > _MAX_DIGITS or int(name) < 1:
        raise UsageError(f"--draft: {name!r} is neither a number of at least 1 nor auto")
    return int(name)


def _named_programs(text: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for item in _split(text, "--peers") if text != "none" else ():
        name, equals, path = item.partition("=")
        if name not in programs.PROGRAMS:
            raise UsageError(f"--peers: unknown program {name!r} (available: {', '.join(programs.PROGRAMS)})")
        if not equals or not Path(path).expanduser().is_file():
            raise UsageError(f"--peers {name}={path}: no such file: use {name}=PATH")
        if name in found:
            raise UsageError(f"--peers: {name} is given twice: measure each build in a separate run")
        found[name] = Path(path).expanduser().absolute()
    return found


def _split(text: str, option: str) -> tuple[str, ...]:
    """The distinct items of a list. Raises UsageError for an empty list."""
    items = tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if not items:
        raise UsageError(f"{option}: the list is empty")
    return items


def _warn_of_programs(plan: Plan, slot: Slot) -> None:
    if programs.SPECULATIVE in plan.programs and slot.draft_model is None:
        warn(f"{programs.SPECULATIVE} needs a draft: skipped")
    if plan.programs and slot.translation is not None:
        warn("llama.cpp's programs cannot use a draft with another vocabulary: they run without it or are skipped")


def _text(prompt: Prompt, target: Model, *, raw: bool) -> str:
    """The prompt in the model's chat template, if any, without the BOS token, which all programs add."""
    if raw or target.metadata("tokenizer.chat_template") is None:
        return prompt.text
    text = target.apply_chat_template([{"role": "user", "content": prompt.text}])
    bos = target.spelling([target.bos]).decode("utf-8", "replace") if target.adds_bos else ""
    return text.removeprefix(bos)


def _reserve(engine: Engine, prompts: Sequence[Prompt], n_predict: int) -> None:
    """Create contexts that hold the longest text. Raises DuoError."""
    longest = max(len(engine.tokenize(prompt.text)) for prompt in prompts)
    engine.call(lambda slot: slot.reserve(longest, n_predict + _ROOM))
    n_ctx = engine.slot.n_ctx
    if longest + n_predict > n_ctx:
        raise PromptError(f"{longest} prompt tokens and {n_predict} more exceed the context of {n_ctx}: reduce -n")


def _possible(plan: Plan, slot: Slot) -> Sequence[str]:
    """The modes that these models support. Raises UsageError if another was requested."""
    if slot.draft is not None or set(plan.modes) <= set(ALONE) or slot.draft_model is None:
        return [mode for mode in plan.modes if slot.looks_up or mode != "lookup"] or ["plain"]
    if plan.modes_were_named:
        raise UsageError("one of these models cannot roll back its cache and cannot draft: use --modes plain")
    return ["plain"]  # loading has warned that drafting is unsupported


def _caution(n_others: float) -> None:
    """Warn about conditions that distort the figures: other programs that use `n_others` cores, and variables."""
    cores = usable_cores()
    if is_busy(n_others, cores):
        say(f"duo: other programs use {n_others:.1f} of {cores} cores: the figures will vary; stop them and try again")
    for name in filter(os.environ.__contains__, SLOWING):
        say(f"duo: {name} is set: it can make decodes of all programs several times slower")


def _measure(results: Results, prompts: Sequence[Prompt], job: Job) -> int:
    """Fill `results`. Returns the exit status: nonzero after Ctrl-C."""

    def work(put: Callable[[Sample], None], stop: threading.Event) -> None:
        measure(results.contestants, prompts, job, put, warn, stop, lambda name: say(f"duo: warming up {name}"))

    stopped = threading.Event()
    n_texts = len(prompts) * len(results.contestants)
    say(f"duo: {len(prompts)} rounds of {len(results.contestants)} contestants, {job.n_tokens} tokens per text")

    def stop() -> None:
        stopped.set()
        for contestant in results.contestants:
            if isinstance(contestant.writer, InProcess):
                contestant.writer.interrupt()

    with on_interrupt(stop) as interrupt, background(work, "duo-target", stopped) as measuring:
        start = time.monotonic()
        for sample in measuring:
            results.samples.append(sample)
            say(bench_table.progress(sample, results, len(prompts)))
            if len(results.samples) == len(results.contestants) < n_texts:
                left_s = (time.monotonic() - start) * (len(prompts) - 1)
                say(f"duo: about {left_s:.0f} s more, after one of {len(prompts)} rounds")
    if interrupt.signal:
        say(f"duo: interrupted after {len(results.samples)} of {n_texts} texts")
    return interrupt.status


def _markdown(results: Results, facts: dict[str, Any]) -> list[str]:
    """The table, and the facts as JSON."""
    models = [model for model in facts["models"].values() if model]
    pair = ", draft ".join(f"{model['name']} ({model['quantisation']})" for model in models)
    categories = dict.fromkeys(sample.prompt.category for sample in results.samples)
    n_rounds = len({sample.i_round for sample in results.samples})
    rows = [results.row(contestant) for contestant in results.contestants]
    return [
        f"{pair}; {facts['options']['predict']} greedy tokens each, {n_rounds} rounds ({', '.join(categories)}). "
        "Decode t/s: median (quartiles); speed-up over plain: geometric mean of the rounds (95 % t interval).",
        "", *bench_table.table(rows), *bench_table.excluded(results), "", "```json", json.dumps(facts, indent=2), "```",
    ]  # fmt: skip

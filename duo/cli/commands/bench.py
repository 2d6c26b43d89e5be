"""`duo bench`: benchmarks plain decoding, duo's modes and llama.cpp's programs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from duo.bench import formats, peers
from duo.bench.contestant import ALONE, LOOKUP, PLAIN, Interrupted, Job
from duo.bench.facts import checksums, circumstances, model_facts
from duo.bench.lineup import DEFAULT_N_MAX, other_programs, own_modes
from duo.bench.modes import InProcess
from duo.bench.prompts import Prompt, rounds
from duo.bench.results import Results
from duo.bench.rounds import Sample, measure
from duo.bench.server_peer import ServerPeer
from duo.bench.timeline import new_figure
from duo.cli.installation import SLOWING
from duo.cli.load import check_usage, loaded
from duo.cli.options.bench import BenchOptions
from duo.cli.options.bench_plan import Plan, read_plan
from duo.cli.terminal.console import progress_bar, say, warn
from duo.cli.terminal.files import blame, check_writable
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.engine.background import Background
from duo.engine.cores import usable_cores
from duo.engine.engine import Engine
from duo.engine.free_cores import cpu_times, is_busy, other_cpu_use
from duo.engine.slot import Slot
from duo.errors import PromptError, UsageError
from duo.llama.model import Model

_ROOM = 32  # extra context tokens that the programs may need

_FORMATS = {
    "md": formats.markdown,
    "csv": formats.as_csv,
    "json": formats.as_json,
    "jsonl": formats.as_json_lines,
}


def bench(options: BenchOptions) -> int:
    """Run the benchmark and print the results. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file, hidden=("duo.link", "duo.process"))
    plan = read_plan(options)
    load_before, since = round(os.getloadavg()[0], 2), cpu_times()
    _check_plot(options.plot)
    options = replace(options, draft=plan.largest)
    if plan.emulation is not None:  # one core for each model
        options = replace(options, threads=options.threads or 1, threads_draft=options.threads_draft or 1)
    check_usage(options)
    modes = plan.modes_for(options.has_draft)
    versions = {name: {"path": str(path), "version": peers.version(path)} for name, path in plan.peers.items()}
    with loaded(options) as engine, ExitStack() as stack:
        slot = engine.slot
        models = [model for model in (slot.target, slot.draft_model) if model is not None]
        if peers.SPECULATIVE in plan.peers and len(models) == 1:
            warn(f"{peers.SPECULATIVE} needs a draft: skipped")
        if plan.peers and slot.translation is not None:
            warn("llama.cpp's programs cannot use a draft with another vocabulary: they run without it or are skipped")
        prompts = [replace(p, text=_text(p, slot.target, raw=options.raw)) for p in plan.prompts]
        taken = rounds(prompts, options.repetitions)
        _reserve(engine, taken, options.predict)
        draft = models[1].path if len(models) > 1 else None
        job = Job(slot.target.path, draft, "", Path(), options.predict, slot.n_ctx)
        limits = {name: replace(slot.config, draft_n_max=n).drafting() for name, n in plan.limits.items()}
        contestants = own_modes(engine, _possible(modes, plan, slot), limits, stack, plan.emulation)
        n_max = list(dict.fromkeys(n or DEFAULT_N_MAX for n in plan.limits.values()))
        contestants += other_programs(plan.peers, n_max, job, engine, stack, may_fail=plan.peers_were_found)
        results = Results(contestants)
        facts = circumstances() | {"load_before": load_before, "complete": False}
        facts |= {"peers": versions, "options": msgspec.to_builtins(options, enc_hook=str) | {"draft": options.limits}}
        if plan.emulation is not None:
            facts["emulated"] = plan.emulation.facts()
            say(f"duo: {formats.emulated(facts['emulated'])}")
        _caution(other_cpu_use(since))
        sums: list[dict[str, str]] = []
        try:
            status = _measure(results, taken, job, models, sums, options)
            facts["complete"] = not status
            return status
        finally:  # also after an error
            if results.samples:
                found = [model_facts(model, each) for model, each in zip(models, sums, strict=True)]
                facts["models"] = {"target": found[0], "draft": found[1] if len(found) > 1 else None}
                _show(results, facts, options)


def _show(results: Results, facts: dict[str, Any], options: BenchOptions) -> None:
    print(_FORMATS[options.output](results, facts))  # noqa: T201 - the result
    if options.output == "csv":
        say(json.dumps(facts))
    if options.plot is not None:
        from duo.bench.plot import draw  # noqa: PLC0415 - matplotlib is slow to load

        with blame("--plot", options.plot):
            draw(options.plot, results, facts)


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


def _possible(modes: Sequence[str], plan: Plan, slot: Slot) -> Sequence[str]:
    """The modes that these models support. Raises UsageError if another was requested."""
    if slot.draft is not None or set(modes) <= set(ALONE):
        return modes if slot.looks_up else [mode for mode in modes if mode != LOOKUP] or [PLAIN]
    if plan.modes is not None:
        raise UsageError("one of these models cannot roll back its cache and cannot draft: use --modes plain")
    return [PLAIN]  # loading has warned that drafting is unsupported


def _caution(n_others: float) -> None:
    """Warn about conditions that distort the figures: other programs that use `n_others` cores, and variables."""
    cores = usable_cores()
    if is_busy(n_others, cores):
        say(f"duo: other programs use {n_others:.1f} of {cores} cores: the figures will vary; stop them and try again")
    for name in filter(os.environ.__contains__, SLOWING):
        say(f"duo: {name} is set: it can make decodes of all programs several times slower")


def _measure(
    results: Results,
    prompts: Sequence[Prompt],
    job: Job,
    models: Sequence[Model],
    sums: list[dict[str, str]],
    options: BenchOptions,
) -> int:
    """Fill `sums` (checksums of the models) and `results`. Returns the exit status: nonzero after Ctrl-C."""

    def work(put: Callable[[Sample], None], stop: threading.Event) -> None:
        try:
            with progress_bar() as show:
                sums.extend(checksums(model.config, show, stop) for model in models)
            measure(results.contestants, prompts, job, put, warn, stop, lambda name: say(f"duo: warming up {name}"))
        except Interrupted:
            pass

    measuring = Background(work, "duo-target")
    n_texts = len(prompts) * len(results.contestants)
    say(f"duo: {len(prompts)} rounds of {len(results.contestants)} contestants, {job.n_tokens} tokens per text")

    def stop() -> None:
        measuring.stop()
        for contestant in results.contestants:
            if isinstance(contestant.writer, InProcess | ServerPeer):
                contestant.writer.interrupt()

    with on_interrupt(stop) as interrupt, measuring:
        start = time.monotonic()
        for sample in measuring:
            results.add(sample)
            say(formats.progress(sample, results, len(prompts)))
            if len(results.samples) == len(results.contestants) < n_texts:
                left_s = (time.monotonic() - start) * (len(prompts) - 1)
                say(f"duo: about {left_s:.0f} s more, after one of {len(prompts)} rounds")
            if options.output == "jsonl":
                print(formats.json_line("run", formats.run_line(sample)), flush=True)  # noqa: T201
    if interrupt.signal:
        say(f"duo: interrupted after {len(results.samples)} of {n_texts} texts")
    return interrupt.status


def _check_plot(path: Path | None) -> None:
    """Raise UsageError if the plot cannot be written."""
    if path is None:
        return
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot writes .svg or .png, not {path.name}")
    new_figure(1, 1)  # fail before the measurement if matplotlib is missing
    check_writable(path, "--plot")

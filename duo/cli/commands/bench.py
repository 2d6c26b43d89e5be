"""`duo bench`: plain decoding, duo's ways and llama.cpp's programs, measured in turns on the user's own models."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from duo.bench import formats, peers
from duo.bench.contestant import PLAIN, Interrupted, Job
from duo.bench.facts import checksums, circumstances, model_facts
from duo.bench.lineup import DEFAULT_N_MAX, Programs, other_programs, own_ways
from duo.bench.modes import InProcess
from duo.bench.prompts import Prompt, rounds
from duo.bench.results import Results
from duo.bench.rounds import Sample, measure
from duo.bench.timeline import new_figure
from duo.cli.installation import SLOWING
from duo.cli.load import check_usage, loaded
from duo.cli.options.bench import BenchOptions, Format
from duo.cli.options.bench_plan import Plan, read_plan
from duo.cli.options.context import CacheOptions
from duo.cli.terminal.console import progress_bar, say, warn
from duo.cli.terminal.files import blame, check_writable
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.cli.terminal.report import plain_options
from duo.config import ModelConfig
from duo.engine.background import Background
from duo.engine.cores import usable_cores
from duo.engine.engine import Engine
from duo.engine.slot import Slot
from duo.errors import PromptError, UsageError
from duo.llama.devices import gpus
from duo.llama.model import Model

_BUSY = 0.25  # of the cores
_ROOM = 32  # tokens of the context that programs may need beyond the text

_FORMATS = {
    Format.MD: formats.markdown,
    Format.CSV: formats.as_csv,
    Format.JSON: formats.as_json,
    Format.JSONL: formats.as_json_lines,
}


def bench(options: BenchOptions) -> int:
    """Measure and print. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file, hidden=("duo.link", "duo.process"))
    plan = read_plan(options)
    busy = round(os.getloadavg()[0], 2)  # before this process adds to it
    _check_plot(options.plot)
    options = replace(options, draft=plan.largest)
    check_usage(options)
    has_draft = options.has_draft
    modes = plan.modes_for(has_draft)
    versions = {name: {"path": str(path), "version": peers.version(path)} for name, path in plan.peers.items()}
    with loaded(options) as engine, ExitStack() as stack:
        slot = engine.slot
        prompts = [replace(p, text=_text(p, slot.target, raw=options.raw)) for p in plan.prompts]
        taken = rounds(prompts, options.repetitions)
        _reserve(engine, taken, options.predict)
        models = [slot.target.config, *([slot.draft_model.config] if slot.draft_model is not None else [])]
        target, draft = models[0], models[1] if len(models) > 1 else None
        job = Job(target.path, draft.path if draft is not None else None, "", Path(), options.predict, slot.n_ctx)
        limits = {name: replace(slot.config, draft_n_max=n).drafting() for name, n in plan.limits.items()}
        contestants = own_ways(engine, _possible(modes, plan, slot), limits, draft, stack)
        contestants += other_programs(_programs(options, plan, target, draft), job, engine, stack)
        results = Results(contestants)
        facts = circumstances() | {"load_before": busy, "complete": False}
        facts |= {"peers": versions, "options": plain_options(asdict(options)) | {"draft": options.limits}}
        _caution(busy)
        sums: list[dict[str, str]] = []
        try:
            status = _measure(results, taken, job, models, sums, options)
            facts["complete"] = not status
            return status
        finally:  # whatever ended it, what was measured is said
            if results.samples:
                facts["models"] = _models(slot, sums)
                _show(results, facts, options)


def _show(results: Results, facts: dict[str, Any], options: BenchOptions) -> None:
    print(_FORMATS[options.output](results, facts))  # noqa: T201 - this is what was asked for
    if options.output is Format.CSV:
        say(json.dumps(facts))
    if options.plot is not None:
        _draw(options.plot, results, facts)


def _text(prompt: Prompt, target: Model, *, raw: bool) -> str:
    """The prompt in the model's chat template, if it has one, without the BOS that everybody puts in front."""
    if raw or target.metadata("tokenizer.chat_template") is None:
        return prompt.text
    text = target.apply_chat_template([{"role": "user", "content": prompt.text}])
    bos = target.spelling([target.bos]).decode("utf-8", "replace") if target.adds_bos else ""
    return text.removeprefix(bos)


def _reserve(engine: Engine, prompts: Sequence[Prompt], n_predict: int) -> None:
    """Make contexts that hold each of the texts. Raises DuoError."""
    longest = max(len(engine.tokenize(prompt.text)) for prompt in prompts)
    engine.call(lambda slot: slot.reserve(longest, n_predict + _ROOM))
    n_ctx = engine.slot.n_ctx
    if longest + n_predict > n_ctx:
        raise PromptError(f"a prompt of {longest} tokens and {n_predict} more do not fit {n_ctx}: take a smaller -n")


def _possible(modes: Sequence[str], plan: Plan, slot: Slot) -> Sequence[str]:
    """The modes that these models can do. Raises UsageError if others were asked for."""
    if slot.draft is not None or set(modes) == {PLAIN}:
        return modes
    if plan.modes is not None:
        raise UsageError("one of these models cannot take tokens back: nothing is drafted, take --modes plain")
    return (PLAIN,)  # that nothing is drafted has been said


def _caution(busy: float) -> None:
    """Say what will spoil the figures."""
    if busy > _BUSY * usable_cores():
        say(f"duo: the load is {busy} already, on {usable_cores()} cores: these figures will wander")
    for name in filter(os.environ.__contains__, SLOWING):
        say(f"duo: {name} is set: it can make every decode, of all programs, several times slower")


def _programs(options: CacheOptions, plan: Plan, target: ModelConfig, draft: ModelConfig | None) -> Programs:
    """The programs beside duo, with the options that decide what a decode costs."""
    shared = ["-fa", options.flash_attn.value, "-ctk", options.cache_type_k.value, "-ctv", options.cache_type_v.value]
    if draft is None and "llama-speculative-simple" in plan.peers:
        warn("llama-speculative-simple needs a draft: left out")
    n_max = dict.fromkeys(n or DEFAULT_N_MAX for n in plan.limits.values())
    drafting = [] if draft is None else _devices(draft, "-ngld", "-devd")
    shared += [*_devices(target, "-ngl", "-dev"), *_split(target)]
    return Programs(plan.peers, list(n_max), shared, drafting, may_fail=plan.peers_were_found)


def _devices(config: ModelConfig, layers: str, devices: str) -> list[str]:
    """The options that put a model where duo puts it; theirs may have been built with a GPU where duo has none."""
    if not gpus():
        return [devices, "none"]
    found = [layers, "all" if config.n_gpu_layers < 0 else str(config.n_gpu_layers)]
    return found if config.devices is None else [*found, devices, ",".join(config.devices) or "none"]


def _split(config: ModelConfig) -> list[str]:
    """How the target is shared between several GPUs; theirs have no other options for the draft."""
    if not gpus():
        return []
    shares = ["-ts", ",".join(f"{share:g}" for share in config.tensor_split)] if config.tensor_split else []
    return ["-sm", config.split_mode, "-mg", str(config.main_gpu), *shares]


def _measure(
    results: Results,
    prompts: Sequence[Prompt],
    job: Job,
    models: Sequence[ModelConfig],
    sums: list[dict[str, str]],
    options: BenchOptions,
) -> int:
    """Fill `sums`, the models' checksums, and `results` on another thread. The exit status after Ctrl-C, 0 without."""

    def work(put: Callable[[Sample], None], stop: threading.Event) -> None:
        try:
            with progress_bar() as show:
                sums.extend(checksums(model, show, stop) for model in models)
            measure(results.contestants, prompts, job, put, warn, stop, lambda name: say(f"duo: {name} warms up"))
        except Interrupted:
            pass

    measuring = Background(work, "duo-target", stall_s=3600)
    width = max(len(contestant.name) for contestant in results.contestants)
    say(f"duo: {len(prompts)} rounds of {len(results.contestants)} ways, {job.n_tokens} tokens each")

    def stop() -> None:
        measuring.stop()
        for contestant in results.contestants:
            if isinstance(contestant.writer, InProcess):
                contestant.writer.interrupt()

    with on_interrupt(stop) as interrupt, measuring:
        for sample in measuring:
            results.add(sample)
            say(_progress(sample, results, len(prompts), width))
            if options.output is Format.JSONL:
                print(formats.json_line("run", formats.run_line(sample)), flush=True)  # noqa: T201
    if interrupt.signal:
        say(f"duo: interrupted after {len(results.samples)} of {len(prompts) * len(results.contestants)} texts")
    return interrupt.status


def _progress(sample: Sample, results: Results, n_rounds: int, width: int) -> str:
    ratio = results.ratio(sample)
    gain = "" if ratio is None else f"{ratio:8.2f} of plain"
    name = f"{sample.contestant.name:<{width}}"
    return (
        f"{sample.i_round + 1}/{n_rounds} {sample.prompt.category:<12} {name} {sample.run.tokens_per_s:8.1f} t/s{gain}"
    )


def _models(slot: Slot, sums: Sequence[dict[str, str]]) -> dict[str, Any]:
    models = [model_facts(m, s) for m, s in zip(filter(None, (slot.target, slot.draft_model)), sums, strict=True)]
    return {"target": models[0], "draft": models[1] if len(models) > 1 else None}


def _check_plot(path: Path | None) -> None:
    """Raise UsageError for a plot that could not be drawn at the end."""
    if path is None:
        return
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot draws .svg or .png, not {path.name}")
    new_figure(1, 1)  # find out now whether it can be drawn
    check_writable(path, "--plot")


def _draw(path: Path, results: Results, facts: dict[str, Any]) -> None:
    from duo.bench.plot import draw  # noqa: PLC0415 - matplotlib is slow to load

    with blame("--plot", path):
        draw(path, results, facts)

"""From options to configs: everything that can be decided before a model is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from duo.cli.devices import is_demo, place
from duo.cli.fitting import fit
from duo.cli.options import AUTO_DRAFT, RunOptions, ScheduleChoice
from duo.cli.output import progress_bar, say, warn
from duo.cli.prompt import read_argument
from duo.config import ContextConfig, DraftConfig, ModelConfig, StopConfig, ThreadConfig
from duo.engine.cores import allowed_cores, parse_range, split_cores, usable_cores
from duo.errors import UsageError
from duo.llama.devices import CPU
from duo.llama.model import Model
from duo.models.demo import demo_pair
from duo.models.hub import resolve_hub
from duo.models.paths import check_gguf
from duo.spec.schedule import ALL, Schedule

Places = frozenset[str]
ON_CPU: Places = frozenset((CPU,))

# Quantisations whose kernels give the same bits for two rows or more: see tests/llama/test_exact.py.
_EXACT = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")


def model_configs(options: RunOptions) -> tuple[ModelConfig, ModelConfig | None]:
    """The models asked for; the demo pair if none was. Raises DuoError."""
    target, draft = place(options, *_paths(options))
    _check_shards(target, draft)
    return fit(options, target, draft)


def lone_draft(options: RunOptions) -> ModelConfig:
    """The model that the options name, or the demo pair's draft, as a draft without a target. Raises DuoError."""
    target, draft = _paths(options)
    path = draft or target
    config, _ = place(replace(options, model=path, hf_repo=None), path, None)
    _check_shards(config)
    return fit(options, config, None, name="draft")[0]


def _check_shards(*configs: ModelConfig | None) -> None:
    for config in filter(None, configs):
        for part in config.shards:
            check_gguf(part)


def draft_config(options: RunOptions) -> DraftConfig:
    """How far to draft and verify. Raises UsageError."""
    n_max = AUTO_DRAFT if options.draft is None else options.draft
    # They are verified in one batch, together with the last accepted token.
    n_max = min(n_max, max(2, min(options.batch_size, options.ubatch_size)) - 1)
    n_ahead = 2 * n_max if options.draft_ahead is None else options.draft_ahead
    return DraftConfig(n_max, n_ahead)


def stop_config(options: RunOptions) -> StopConfig:
    """When to stop. Raises UsageError or PromptError."""
    stops = [read_argument(stop, "-r", escape=options.escape) for stop in options.reverse_prompt or ()]
    return StopConfig(options.predict, tuple(stops), options.ignore_eos)


def check_usage(options: RunOptions) -> None:
    """Find out what cannot be meant like this before anything is fetched or loaded. Raises UsageError."""
    stop_config(options)
    threads = thread_config(options, drafting=False)
    context_config(options, threads, draft_config(options).n_max)


def schedules(options: RunOptions) -> tuple[Schedule, ...]:
    """The schedules to choose from."""
    return ALL if options.schedule is ScheduleChoice.AUTO else (Schedule(options.schedule.value),)


def thread_config(
    options: RunOptions, *, drafting: bool, target_on: Places = ON_CPU, draft_on: Places = ON_CPU
) -> ThreadConfig:
    """Who computes on how many threads in which schedule; each model is on its `Model.places`. Raises UsageError."""
    own = parse_range(options.cpu_range) if options.cpu_range else None
    cores = usable_cores()
    target = options.threads or (min(cores, len(own)) if own else cores)
    # A model on other devices needs a core only to feed them.
    asked = options.threads_draft or (None if CPU in draft_on else 1)
    # A target that has all cores for itself leaves the draft some when they run side by side.
    beside = None if target >= cores and not options.threads_draft else target
    if CPU not in target_on and not options.threads:
        beside = 1
    return ThreadConfig(
        target,
        options.threads_batch or target,
        draft=(asked,) if asked else (1, cores) if cores > 1 else (1,),
        beside=split_cores(beside if options.threads or own or CPU not in target_on else None, asked, cores)
        if drafting
        else (target, 1),
        cores=own,
        draft_cores=parse_range(options.cpu_range_draft) if options.cpu_range_draft else own and allowed_cores(),
        apart=not target_on & draft_on,
    )


def warn_of_threads(threads: ThreadConfig, *, beside: bool) -> None:
    """Warn when more threads than cores are to compute at the same time."""
    cores = usable_cores()
    asked = max(threads.target, sum(threads.beside) if beside else 0)
    # A single core has to be shared whatever was asked for.
    if asked > max(cores, 1 + beside):
        warn(f"{asked} threads on {cores} cores will slow each other down")


def warn_of_inexact(target: Model) -> None:
    """Warn if --exact cannot keep its promise for this quantisation."""
    if target.quantisation not in _EXACT:
        warn(f"--exact: {target.quantisation} is not bit-equal from five rows on; near-ties may still differ")


def context_config(options: RunOptions, threads: ThreadConfig, n_max: int) -> ContextConfig:
    """The target's context, its size not yet decided. Raises UsageError."""
    return ContextConfig(
        n_ctx=1,
        n_threads=threads.target,
        n_threads_batch=threads.target_batch,
        n_batch=options.batch_size,
        n_ubatch=options.ubatch_size,
        n_outputs_max=n_max + 1,
        flash_attn=options.flash_attn.value,
        type_k=options.cache_type_k.value,
        type_v=options.cache_type_v.value,
        exact=options.exact,
    )


def _paths(options: RunOptions) -> tuple[Path, Path | None]:
    if options.model and options.hf_repo:
        raise UsageError("-m and -hf both name the target: leave one out")
    if options.model_draft and options.hf_repo_draft:
        raise UsageError("-md and -hfd both name the draft: leave one out")
    if is_demo(options):
        if options.model_draft or options.hf_repo_draft:
            raise UsageError("a draft without a target: name the target with -m or -hf")
        with progress_bar(unit_bytes=True) as bar:
            target, draft = demo_pair(bar, offline=options.offline)
        say("duo: no model was named (-m, -hf): this is the demo pair, SmolLM2-135M-Instruct in F16 and Q4_0")
        return target, None if options.draft == 0 else draft
    for path in (options.model, options.model_draft):
        if path is not None:
            check_gguf(path)  # before anything is fetched
    target = options.model or resolve_hub(options.hf_repo or "", options.offline)
    if options.draft == 0:
        return target, None
    if options.hf_repo_draft:
        return target, resolve_hub(options.hf_repo_draft, options.offline)
    return target, options.model_draft

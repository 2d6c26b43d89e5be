"""Threads and contexts for a loaded pair, from the options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duo.cli.configs import (
    ON_CPU,
    context_config,
    draft_config,
    schedules,
    thread_config,
    warn_of_inexact,
    warn_of_threads,
)
from duo.cli.options import RunOptions
from duo.cli.output import warn
from duo.cli.profile import tuned_threads
from duo.config import ContextConfig, ThreadConfig
from duo.engine.pair import Pair, context_size
from duo.llama.context import Context
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule


def threads_for(options: RunOptions, pair: Pair, kept: dict[str, Any]) -> ThreadConfig:
    """Who computes on how many threads; `kept` is what a profile keeps. Raises UsageError."""
    threads = thread_config(
        options,
        drafting=pair.can_speculate,
        target_on=pair.target.places,
        draft_on=pair.draft.places if pair.draft is not None else ON_CPU,
    )
    threads = tuned_threads(threads, options, kept)
    warn_of_threads(threads, beside=pair.can_speculate and Schedule.ASYNC in schedules(options))
    return threads


def make_contexts(
    options: RunOptions, pair: Pair, threads: ThreadConfig, n_prompt: int, n_predict: int, *, helped: bool = True
) -> tuple[Context, Context | None]:
    """Contexts of the target and, if there is one that can be used, of the draft.

    They hold a prompt of `n_prompt` tokens and `n_predict` more (-1: as many as can be). `helped`: whether drafts on
    other machines may come. Raises DuoError.
    """
    if options.exact:
        warn_of_inexact(pair.target)
    drafting = draft_config(options)
    n_max = drafting.n_max if helped or pair.draft is not None else 0
    config = context_config(options, threads, n_max)
    n_ctx = context_size(pair.target, config, n_prompt, n_predict, options.ctx_size)
    # Exact decodes need one cell to spare.
    config = replace(config, n_ctx=n_ctx + options.exact)
    draft_side = ContextConfig(
        n_ctx + drafting.n_ahead, 1, threads.target, config.n_batch, config.n_ubatch, n_outputs_max=Policy.PROBE_TOKENS
    )
    context, draft_context = pair.contexts(config, draft_side, warn)
    most = context.n_rollback
    if most and most < n_max and options.draft is not None:
        warn(f"--draft {options.draft}: {pair.target.path.name} can roll back {most} tokens, so no more are verified")
    return context, draft_context

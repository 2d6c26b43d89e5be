"""The number of threads of each model in each schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from duo.config import EngineConfig, ThreadConfig
from duo.engine.cores import allowed_cores, parse_range, split_cores, usable_cores
from duo.llama.devices import CPU

log = logging.getLogger("duo.engine")

Places = frozenset[str]
ON_CPU: Places = frozenset((CPU,))


def plan_threads(
    config: EngineConfig, *, drafting: bool, target_on: Places = ON_CPU, draft_on: Places = ON_CPU
) -> ThreadConfig:
    """Threads of both models in each schedule; each model is on its `Model.places`. Raises UsageError."""
    own = parse_range(config.cpu_range) if config.cpu_range else None
    cores = usable_cores()
    target = config.n_threads or (min(cores, len(own)) if own else cores)
    # A model on other devices needs one core to submit work to them.
    asked = config.draft_n_threads or (None if CPU in draft_on else 1)
    # A target that uses all cores when alone gives some to a concurrent draft.
    beside = None if target >= cores and not config.draft_n_threads else target
    if CPU not in target_on and not config.n_threads:
        beside = 1
    return ThreadConfig(
        target,
        config.n_threads_batch or target,
        draft=(asked,) if asked else (1, cores) if cores > 1 else (1,),
        beside=split_cores(beside if config.n_threads or own or CPU not in target_on else None, asked, cores)
        if drafting
        else (target, 1),
        cores=own,
        draft_cores=parse_range(config.draft_cpu_range) if config.draft_cpu_range else own and allowed_cores(),
        apart=not target_on & draft_on,
    )


def tuned_threads(threads: ThreadConfig, config: EngineConfig, kept: Mapping[str, Any]) -> ThreadConfig:
    """`threads` with the numbers stored in a profile, unless the user specified any or they are damaged."""
    if config.n_threads or config.draft_n_threads:
        return threads
    try:
        tuned = kept["threads"]
        target, draft, *beside = (int(n) for n in (tuned["target"], tuned["draft"], *tuned["beside"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return threads
    if len(beside) != 2 or not all(1 <= n <= usable_cores() for n in (target, draft, *beside)):
        return threads
    return replace(threads, target=target, draft=(draft,), beside=(beside[0], beside[1]))


def warn_of_threads(threads: ThreadConfig, *, beside: bool) -> None:
    """Warn if more threads than cores would compute concurrently."""
    cores = usable_cores()
    asked = max(threads.target, sum(threads.beside) if beside else 0)
    # A single core is always shared.
    if asked > max(cores, 1 + beside):
        log.warning("%d threads on %d cores will slow each other down", asked, cores)

"""`duo lead`: a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace

from duo.cli.configs import (
    check_usage,
    draft_config,
    schedules,
    stop_config,
)
from duo.cli.contexts import make_contexts, threads_for
from duo.cli.elsewhere import Elsewhere
from duo.cli.interrupts import on_interrupt
from duo.cli.lead_options import LeadOptions
from duo.cli.load import models
from duo.cli.options import RunOptions
from duo.cli.output import TextWriter, marks_tokens, say, send_log, show_notices, warn
from duo.cli.profile import keep
from duo.cli.sampling import check_grammar, grammar_text, sampling_config
from duo.cli.server_options import PrintChoice
from duo.cli.serving import in_url, lead_door, lead_rules
from duo.engine.background import Background
from duo.engine.pair import Pair
from duo.engine.slot import Slot, Task
from duo.errors import DeviceError
from duo.models.profiles import Profile
from duo.server.api import Defaults
from duo.server.app import Lead
from duo.server.listener import Listener
from duo.server.metrics import ServerMetrics
from duo.server.scheduler import Scheduler
from duo.spec.types import Step

_MOST_UNSEEN = 4096  # steps that wait to be shown


def lead(options: LeadOptions) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    show_notices("duo.link", "duo.child", "duo.server")
    shared = {field.name for field in fields(RunOptions)} & {field.name for field in fields(options)}
    run_options = RunOptions(**{name: getattr(options, name) for name in shared})
    check_usage(run_options)
    check_grammar(run_options)
    rules, door = lead_rules(options), lead_door(options)
    elsewhere = Elsewhere()
    backs = elsewhere.backs
    scheduler = Scheduler(options.queue, backs)
    metrics = ServerMetrics(scheduler, backs)
    endpoints = Lead(scheduler, backs, metrics)
    listener = Listener(endpoints.app(rules, door), options.host, options.port)
    # The port answers while the models are fetched and loaded: /health says so.
    with listener, elsewhere, models(run_options, elsewhere) as (pair, profile):
        slot = _slot(run_options, pair, profile)
        elsewhere.begin(pair.target, slot.context, starts=slot.can_be_helped)
        endpoints.load(pair.target, _defaults(options, run_options, pair), slot.n_ctx)
        if door.closed:
            say("duo: no backs may join: that takes --back-token")
        try:
            with on_interrupt(scheduler.stop):
                scheduler.load(slot)
                say(f"duo: listening on http://{in_url(options.host)}:{listener.port} (Ctrl-C stops)")
                _serve(options, scheduler, slot, metrics, pair)
        except DeviceError as error:
            scheduler.fail(error)  # so that clients hear of it
            raise
        finally:
            listener.close()  # before the models go: requests may be using them
        if profile is not None:
            keep(profile, slot.learned)
    return 0


def _slot(options: RunOptions, pair: Pair, profile: Profile | None) -> Slot:
    """Contexts of the largest size that is asked for or fits. Raises DuoError."""
    learned = profile.load() if profile is not None else {}
    threads, drafting = threads_for(options, pair, learned), draft_config(options)
    context, draft_context = make_contexts(options, pair, threads, 0, -1)
    helped = draft_context is not None or (pair.draft is None and pair.can_be_helped(context, warn))
    return Slot(pair, (context, draft_context), threads, drafting, schedules(options), learned, can_be_helped=helped)


def _defaults(options: LeadOptions, run_options: RunOptions, pair: Pair) -> Defaults:
    # A seed of -1 is a new one for each request.
    sampling = replace(sampling_config(run_options), seed=options.seed)
    name = options.alias or pair.target.path.stem
    return Defaults(name, sampling, stop_config(run_options), grammar_text(run_options))


def _serve(options: LeadOptions, scheduler: Scheduler, slot: Slot, metrics: ServerMetrics, pair: Pair) -> None:
    """Write texts on another thread and show them on this one, until the first signal."""
    marks = marks_tokens(options.color)
    shows = options.print is not PrintChoice.NONE and (marks or options.print is not PrintChoice.AUTO)
    rejected = pair.target.piece if options.print is PrintChoice.ALL else None
    writer = TextWriter(marks=marks, rejected=rejected)

    def work(put: Callable[[Step | Task], None], _: threading.Event) -> None:
        def watch(event: Step | Task) -> None:
            if isinstance(event, Task):
                metrics.add(event.metrics, event.n_cached)
            # Where nobody looks, such as at a terminal that was stopped, nothing is to pile up.
            if (shows or isinstance(event, Task)) and running.n_waiting < _MOST_UNSEEN:
                put(event)

        scheduler.run(slot, watch)

    running = Background(work, "duo-target")
    with running:
        for event in running:
            with suppress(OSError):  # nobody looks any more; clients still do
                if isinstance(event, Step):
                    writer.step(event)
                else:
                    writer.end()
                    say(_summary(event))


def _summary(task: Task) -> str:
    """Two lines for one generation; the last has the form of `duo`'s."""
    statistics = task.metrics.statistics()
    prompt, text, draft = statistics["prompt"], statistics["generation"], statistics["draft"]
    n_read = len(task.prompt) - task.n_cached
    lines = f"prompt: {n_read} tokens in {prompt['seconds']:.2f} s, {task.n_cached} cached; stopped: {text['stop']}"
    if draft is not None and draft["verified"]:
        lines += f"; accepted {draft['accepted']} of {draft['verified']} guesses"
    return f"{lines}\ntokens: {text['tokens']} tps: {text['tokens_per_s'] or 0:.3f}"

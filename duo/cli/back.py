"""`duo back`: a draft for a lead on another machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, replace

from duo.cli.back_options import BackOptions
from duo.cli.configs import context_config, lone_draft, thread_config, warn_of_threads
from duo.cli.interrupts import on_interrupt
from duo.cli.load import load
from duo.cli.options import AUTO_DRAFT, RunOptions
from duo.cli.output import say, send_log, show_notices
from duo.cli.secrets import back_token
from duo.cli.until_eof import end_with_stdin
from duo.engine.background import Background
from duo.engine.pair import Pair
from duo.errors import UsageError
from duo.link.back import Back, hello
from duo.llama.context import Context
from duo.llama.vocabulary import Fingerprint

_BATCH = 128  # tokens of a text that are read at once: the lead hears of it after each


def back(options: BackOptions) -> int:
    """Draft for the lead whenever it is there, until SIGINT or SIGTERM. Returns the exit status. Raises DuoError."""
    if options.until_eof:
        end_with_stdin()
    send_log(verbose=options.verbose, file=options.log_file)
    show_notices("duo.link")
    shared = {field.name for field in fields(RunOptions)} & {field.name for field in fields(options)}
    run_options = RunOptions(**{name: getattr(options, name) for name in shared}, ubatch_size=_BATCH)
    token = back_token(options.token, options.token_file, "--token")
    with load(lone_draft(run_options), None) as pair:
        if not pair.target.can_roll_back:
            raise UsageError(f"{pair.target.path.name} cannot roll back its cache, so it cannot draft")
        name = pair.target.path.stem
        worker = Back(
            options.lead,
            hello(token, name, Fingerprint.of(pair.target)),
            lambda n_ctx: _context(run_options, pair, n_ctx),
        )

        def work(_: Callable[[None], None], __: threading.Event) -> None:
            worker.run()

        say(f"duo: {name} drafts for {options.lead} (Ctrl-C stops)")
        running = Background(work, "duo-back")
        with on_interrupt(worker.stop), running:
            for _ in running:
                pass
    return 0


def _context(options: RunOptions, pair: Pair, n_ctx: int) -> Context:
    """A context for texts of so many tokens and the guesses after them, as far as the draft was trained for that."""
    threads = thread_config(options, drafting=False)
    warn_of_threads(threads, beside=False)
    config = context_config(options, threads, 1)
    size = options.ctx_size or min(pair.target.n_ctx_train, n_ctx + 2 * AUTO_DRAFT)
    return Context(pair.target, replace(config, n_ctx=size))

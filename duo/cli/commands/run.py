"""`duo` without a subcommand: generates one text."""

import errno
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from duo import __version__
from duo.bench.results import run_facts, write_json
from duo.cli.commands.options import DemoOptions, RunOptions
from duo.cli.load import empty_hint, loaded, prompt_hint
from duo.cli.options import read_argument, read_prompt
from duo.cli.terminal.console import (
    blame,
    check_writable,
    discard_stdout,
    finish_notices,
    note,
    progress_bar,
    prompt_bar,
    say,
    send_log,
    warn,
)
from duo.cli.terminal.interrupts import Interrupt, on_interrupt
from duo.cli.terminal.report import RunStatistics, render, render_comparison
from duo.cli.terminal.trace import TraceFile
from duo.cli.terminal.writer import REFRESH_S, Live, TextWriter, marks_tokens
from duo.config import GenerationConfig
from duo.engine.cores import usable_cores
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.recorder import Recorder
from duo.engine.request import Request
from duo.engine.stream import Completion, Stream
from duo.errors import DuoError, UsageError
from duo.speculation.types import Step

# Prompt of the demo pair if none is given: most of the answer is in the prompt.
DEMO_PROMPT = """\
Rewrite this letter so that it is addressed to Mr Brown instead of Mrs Green:

Dear Mrs Green,

Thank you for your letter of 3 May. We are pleased to tell you that your order was sent this morning and will arrive \
on Friday. It contains two garden chairs, one round table and a blue parasol. The table needs to be assembled: the \
screws and the tools are in the small box under the table top. If a part is missing or damaged, please keep the \
packaging and call us between nine and five. We will send you a replacement within three days.

We hope that you will enjoy many sunny hours in your garden.

Yours sincerely,
Anna White"""
_HANG_UP_S = 1.0  # at most, from a failed write until SIGHUP


def run(options: RunOptions) -> int:
    """Generate one text. Returns the exit status. Raises DuoError."""
    prompt = _check(options)
    config = options.config(escape=options.escape)
    with loaded(options, config.stop.n_predict) as engine:
        text = _prompt_text(options, prompt, engine)
        if text == prompt and options.conversation is not False and (hint := prompt_hint(engine.slot.target, text)):
            note(hint)
        metrics, slot, alone = Recorder(), engine.slot, None
        trace = _trace(options, metrics, slot)
        stream, tokens, status = _write(options, engine, text, config, metrics, trace)
        statistics = RunStatistics.of(slot, stream)
        about = run_facts(slot, options) if options.json else None
        # The demo compares duo with the target alone; --json and -v have reports of their own.
        compares = options.is_demo and options.engine.schedule == "auto" and not (options.json or options.verbose)
        if compares and statistics.policy is not None and statistics.text.tokens_per_s is not None and not status:
            alone, status = _write_alone(engine, stream.request, len(tokens))
    finish_notices()  # so that the statistics come last
    compared = alone and render_comparison(statistics, tokens, alone, exact=options.engine.exact)
    say(compared or render(statistics, verbose=options.verbose))
    if options.json:
        with blame("--json", options.json):
            write_json(options.json, statistics.document(), about)
    if options.trace and trace is not None and trace.error is not None:
        with blame("--trace", options.trace):
            raise trace.error
    return status


def demo(options: DemoOptions) -> int:
    """Generate one text with the demo pair: see run()."""
    return run(options.as_run())


def _check(options: RunOptions) -> str | None:
    """The prompt; None: that of the demo. Raises UsageError, and PromptError, before anything is loaded."""
    options.check_model()
    # Without --back-port, link messages are about a draft process of this command.
    send_log(options, hidden=() if options.engine.back_port is not None else ("duo.remote",))
    check_writable(options.json, "--json")
    check_writable(options.trace, "--trace")
    if options.json and options.trace and options.json.absolute() == options.trace.absolute():
        raise UsageError(f"--json and --trace both write {options.json}: use a different file for each")
    prompt = read_prompt(options.prompt, options.file, escape=options.escape)
    if prompt is None and not options.is_demo:
        raise UsageError("no prompt: add -p or -f (-f - reads standard input), or chat: duo chat -m FILE")
    return prompt


def _prompt_text(options: RunOptions, prompt: str | None, engine: Engine) -> str:
    """The prompt, in the chat template if one is to be used."""
    system = options.system_prompt
    if system is not None:
        system = read_argument(system, "-sys", escape=options.escape)
    if prompt is None:
        prompt = DEMO_PROMPT
        note(f"no prompt given (-p, -f): {prompt.splitlines()[0]} …")
    elif not (options.chat or options.single_turn) and system is None:
        return prompt
    messages = [{"role": "system", "content": system}] if system else []
    return engine.apply_chat_template([*messages, {"role": "user", "content": prompt}])


def _write(
    options: RunOptions, engine: Engine, text: str, config: GenerationConfig, metrics: Recorder, trace: TraceFile | None
) -> tuple[Stream, list[int], int]:
    """Print a text while it is written: its stream, tokens and the exit status. Raises BrokenPipeError or DuoError."""
    marks = marks_tokens(options.color)
    live = Live(metrics, marks=marks) if options.live and Live.isatty() else None
    if options.live and live is None:
        warn("--live needs a terminal on stdout, and not TERM=dumb")
    writer = TextWriter(marks=marks, stream=live)
    watchers = [watcher for watcher in (live, trace) if watcher is not None]
    prompt, steps = engine.prompt_tokens(text), list[Step]()

    def refresh(*, is_stalled: bool = True) -> None:
        for watcher in watchers:
            watcher.refresh()
        if is_stalled and metrics.steps and not watchers:  # for a long prompt, there is a progress bar
            warn("no token for 30 seconds: the model is very slow or its device hangs (Ctrl-C to stop)")

    try:
        with ExitStack() as watching, ExitStack() as bar:
            show_read = bar.enter_context(prompt_bar(len(prompt), engine.slot.config.n_batch))
            request = Request(prompt, config, on_prompt=show_read, metrics=metrics)
            with _stoppable(partial(engine.start, request)) as (stream, interrupt):
                for watcher in watchers:
                    watching.enter_context(watcher)
                stream.items.on_stall, stream.items.stall_s = refresh, REFRESH_S if watchers else 30.0
                if options.display_prompt:
                    writer.prompt(text)
                for step in stream:
                    bar.close()
                    writer.step(step)
                    steps.append(step)
                    refresh(is_stalled=False)
    finally:
        writer.end()
    has_text = any(piece for step in steps for piece in step.pieces)
    if not has_text and (hint := empty_hint(metrics.stop, config.stop.n_predict)):
        note(hint)
    return stream, [token for step in steps for token in step.tokens], interrupt.status


@contextmanager
def _stoppable(start: Callable[[], Stream]) -> Iterator[tuple[Stream, Interrupt]]:
    """A text that the first signal stops. A terminal that is gone ends the text, not the run."""
    started: list[Stream] = []

    def stop() -> None:
        for stream in started:
            stream.close()

    with on_interrupt(stop) as interrupt, start() as stream:
        started.append(stream)
        if interrupt.signal:  # before there was a stream to stop
            stop()
        try:
            yield stream, interrupt
        except OSError as error:
            if error.errno == errno.EIO:  # of a terminal that is gone, whose signal may be on its way
                time.sleep(_HANG_UP_S)
            if interrupt.signal != signal.SIGHUP:
                raise
            discard_stdout()


def _write_alone(engine: Engine, request: Request, n_tokens: int) -> tuple[Completion | None, int]:
    """The text of `request` again, from the target alone, and the exit status; None if it failed or has no rate."""
    if sys.stderr.isatty():
        note("generating it with the target alone, to compare (Ctrl-C: skip)")
    config = replace(request.config, stop=replace(request.config.stop, n_predict=n_tokens))
    alone = None

    def again() -> Stream:
        engine.call(ModelPair.forget)  # the prompt in one batch, as before: near-ties fall the same way
        return engine.start(Request(request.prompt, config, proposers=Proposers()))

    with progress_bar("comparing"), _stoppable(again) as (stream, interrupt), suppress(DuoError):
        alone = stream.completion()
    if interrupt.signal or (alone is not None and alone.statistics.tokens_per_s is None):
        alone = None
    return alone, interrupt.status


def _trace(options: RunOptions, metrics: Recorder, slot: ModelPair) -> TraceFile | None:
    """The file of --trace. Raises DuoError."""
    if options.trace is None:
        return None
    draft, threads = slot.draft_model, slot.threads
    about = {
        "duo": __version__, "target": slot.target.path.name, "draft": slot.draft_name,
        "schedule": options.engine.schedule, "cores": usable_cores(),
        "threads": {"target": threads.target, "concurrent": threads.concurrent},
        # A remote draft may run on this machine: only the times can tell.
        "separate_devices": threads.separate_devices if draft is not None else None,
    }  # fmt: skip
    with blame("--trace", options.trace):
        return TraceFile(options.trace, metrics, about)

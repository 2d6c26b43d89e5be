"""`duo` without a subcommand: one text."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from duo import __version__
from duo.cli import report
from duo.cli.configs import (
    check_usage,
    draft_config,
    schedules,
    stop_config,
)
from duo.cli.contexts import make_contexts, threads_for
from duo.cli.devices import is_demo, rpc_servers
from duo.cli.interrupts import on_interrupt
from duo.cli.live import Live, can_be_shown
from duo.cli.load import models
from duo.cli.options import RunOptions
from duo.cli.output import (
    TextWriter,
    blame,
    check_writable,
    marks_tokens,
    progress_bar,
    say,
    send_log,
    show_notices,
    warn,
)
from duo.cli.profile import keep
from duo.cli.prompt import DEMO_QUESTION, DEMO_SYSTEM, read_argument, read_prompt
from duo.cli.sampling import check_grammar, choosing, is_in_order, sampling_config, sampling_mode
from duo.cli.watch import Watch
from duo.config import SamplingConfig, ThreadConfig
from duo.engine.background import Background
from duo.engine.generation import Generation
from duo.engine.metrics import Metrics
from duo.engine.pair import Pair
from duo.engine.text import Ending, TextStream
from duo.engine.trace import TraceFile
from duo.errors import DuoError, PromptError, UsageError
from duo.llama.context import Context
from duo.llama.memory import peak_bytes
from duo.llama.model import Model
from duo.models.profiles import remembered, restore
from duo.spec.policy import Policy
from duo.spec.simulate import predict

if TYPE_CHECKING:
    from duo.cli.elsewhere import Elsewhere


def run(options: RunOptions) -> int:
    """Generate one text. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    check_writable(options.json, "--json")
    check_writable(options.trace, "--trace")
    if options.json and options.trace and options.json.absolute() == options.trace.absolute():
        raise UsageError(f"--json and --trace both write {options.json}: give each a file of its own")
    check_usage(options)
    check_grammar(options)
    sampling = sampling_config(options)
    prompt = read_prompt(options.prompt, options.file, escape=options.escape)
    if prompt is None and not is_demo(options):
        raise UsageError("no prompt: give one with -p or -f (-f - reads standard input)")
    elsewhere = _elsewhere(options, sampling)
    metrics = Metrics()
    with elsewhere or nullcontext(), models(options, elsewhere) as (pair, profile):
        kept = profile.load() if profile is not None else {}
        threads = threads_for(options, pair, kept)
        text = _prompt_text(options, prompt, pair.target)
        generation = _generation(options, sampling, pair, threads, text, metrics)
        mode = sampling_mode(options, sampling)
        if elsewhere is not None:
            _take_help(generation, elsewhere, options, sampling, pair)
            elsewhere.restore(options, kept, mode)
        restore(generation.policy, kept, mode)
        trace = _trace(options, metrics, pair)
        live = _live(options, metrics)
        writer = TextWriter(marks=marks_tokens(options.color), stream=live)
        status = _stream(generation, writer, Watch(metrics, live, trace), text if options.display_prompt else None)
        learned = generation.policy if generation.draft is not None else generation.used_policy
        if profile is not None and learned is not None:
            keep(profile, remembered(learned, kept, mode))
        statistics = metrics.statistics() | {"memory": {"peak_bytes": peak_bytes()}}
        statistics["sampling"] = {"temperature": sampling.temp, "seed": sampling.seed, "mode": mode}
        if generation.draft is not None or statistics["draft"] is not None:
            statistics["policy"] = (generation.used_policy or generation.policy).statistics()
        say(report.render(statistics))
        if options.json:
            facts = report.facts(pair, asdict(threads), generation.target.n_ctx, asdict(options))
            if "policy" in statistics:
                statistics["policy"]["predicted_tokens_per_s"] = predict(generation.policy)
            with blame("--json", options.json):
                report.write_json(options.json, statistics | facts)
        if options.trace and trace is not None and trace.error is not None:
            with blame("--trace", options.trace):
                raise trace.error
    return status


def _prompt_text(options: RunOptions, prompt: str | None, target: Model) -> str:
    """The text before the first token, in the chat template if one was asked for."""
    system = options.system_prompt
    if system is not None:
        system = read_argument(system, "-sys", escape=options.escape)
    if prompt is None:
        prompt, system = DEMO_QUESTION, system or DEMO_SYSTEM
        say(f"duo: no prompt was given (-p, -f): {prompt}")
    elif not options.chat and system is None:
        return prompt
    messages = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return target.apply_chat_template(messages)


def _generation(
    options: RunOptions, sampling: SamplingConfig, pair: Pair, threads: ThreadConfig, text: str, metrics: Metrics
) -> Generation:
    """Tokenise the prompt and make contexts that hold it. Raises DuoError."""
    target = pair.target
    prompt = target.tokenize(text)
    if not prompt:
        raise PromptError("the prompt has no tokens")
    drafting, stop = draft_config(options), stop_config(options)
    verifier, guesser = choosing(options, sampling, target)
    context, draft_context = make_contexts(
        options, pair, threads, len(prompt), options.predict, helped=_may_be_helped(options)
    )
    return Generation(
        target=context,
        draft=draft_context,
        prompt=prompt,
        verifier=verifier,
        guesser=guesser,
        ending=Ending(stop, TextStream(target.piece, stop.stop_strings), target.is_end),
        policy=Policy(
            drafting.n_max, drafting.n_ahead, schedules(options), threads.draft, in_order=is_in_order(options, sampling)
        ),
        threads=threads,
        metrics=metrics,
    )


def _may_be_helped(options: RunOptions) -> bool:
    return options.back_port is not None or bool(rpc_servers(options).draft)


def _elsewhere(options: RunOptions, sampling: SamplingConfig) -> Elsewhere | None:
    """The drafts outside this process, if there may be some. Raises UsageError or DeviceError."""
    if not _may_be_helped(options):
        return None
    if is_in_order(options, sampling):
        raise UsageError("--verify rejection needs to know the draft's chances, which backs and RPC drafts do not send")
    from duo.cli.elsewhere import Elsewhere  # noqa: PLC0415 - only who listens waits for the server's libraries

    show_notices("duo.child")
    elsewhere = Elsewhere()
    if options.back_port is not None:
        show_notices("duo.link")
        elsewhere.listen(options)
    return elsewhere


def _take_help(
    generation: Generation, elsewhere: Elsewhere, options: RunOptions, sampling: SamplingConfig, pair: Pair
) -> None:
    from duo.cli.serving import brief  # noqa: PLC0415

    assert isinstance(generation.target, Context)
    if generation.draft is not None or pair.can_be_helped(generation.target, warn):
        elsewhere.begin(pair.target, generation.target)
        generation.helpers = elsewhere.backs.help_with(brief(options, sampling, pair.target))


def _stream(generation: Generation, writer: TextWriter, watch: Watch, prompt: str | None) -> int:
    """Write the text, after `prompt`, while it is generated. Returns the exit status.

    Raises BrokenPipeError or DecodeError.
    """
    metrics = generation.metrics
    running = Background(generation.run, "duo-target", watch.on_pause, watch.pause_s)

    def stop() -> None:
        running.stop()
        generation.interrupt()

    told = False
    with on_interrupt(stop) as interrupt:
        try:
            with watch, ExitStack() as bar:
                if prompt is not None:
                    writer.prompt(prompt)
                if len(generation.prompt) > generation.target.n_batch:
                    show = bar.enter_context(progress_bar())
                    generation.on_prompt = lambda n: show("reading the prompt", n, len(generation.prompt))
                with running:
                    for step in running:
                        bar.close()
                        writer.step(step)
                        watch.on_step()
                        told = told or _warn_of_dead_draft(metrics)
        except DuoError:
            writer.end()
            raise
        writer.end()
    if not told:
        _warn_of_dead_draft(metrics)
    return interrupt.status


def _live(options: RunOptions, metrics: Metrics) -> Live | None:
    """--live, where it can be shown."""
    if options.live and not can_be_shown():
        warn("--live needs a terminal on stdout, and not TERM=dumb")
        return None
    return Live(metrics, marks=marks_tokens(options.color)) if options.live else None


def _trace(options: RunOptions, metrics: Metrics, pair: Pair) -> TraceFile | None:
    """The file of --trace. Raises DuoError."""
    if options.trace is None:
        return None
    about = {
        "duo": __version__,
        "target": pair.target.path.name,
        "draft": pair.draft.path.name if pair.draft is not None else None,
    }
    with blame("--trace", options.trace):
        return TraceFile(options.trace, metrics, about)


def _warn_of_dead_draft(metrics: Metrics) -> bool:
    if metrics.draft_error is not None:
        warn(f"the draft failed ({metrics.draft_error}): the target goes on alone")
    return metrics.draft_error is not None
